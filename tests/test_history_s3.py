"""A store in a bucket: S3's own protocol against moto's server, each writer a process of its own as on a node."""

import json
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from rooftest import cli
from rooftest.history import base

sys.path.insert(0, str(Path(__file__).parent))
import history_made as made

WHY = "a store in a bucket is tried against an S3 server: pip install s3fs 'moto[s3]' flask flask-cors"
s3fs = pytest.importorskip("s3fs", reason=WHY)
pytest.importorskip("flask_cors", reason=WHY)
server = pytest.importorskip("moto.server", reason=WHY)

RUN = "import sys; from rooftest.cli import main; sys.exit(main(sys.argv[1:]))"
KEYS = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@pytest.fixture(scope="module")
def endpoint():
    """An S3 server on this machine that every client of the module talks to."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(key, value)
        s3fs.S3FileSystem.clear_instance_cache()  # made for another endpoint
        yield host, port
    s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.fixture
def bucket(endpoint, request):
    """The URL of a store in a bucket of the test's own."""
    name = f"b{abs(hash(request.node.name)):x}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}/kernels"


def node(folder, n, runs=6):
    """Results files of one node, a night each."""
    nights = [made.run(made.START + i * timedelta(days=1), {"acme": 1e-4 + 1e-6 * n}, gpu=n) for i in range(runs)]
    return [made.save(folder, data, f"{n}-{i}.json") for i, data in enumerate(nights)]


def begin(*words, **environment):
    command = [sys.executable, "-c", RUN, *map(str, words)]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def ended(*begun):
    out = [each.communicate(timeout=120)[0] for each in begun]
    assert [each.returncode for each in begun] == [0] * len(begun)
    return out


def counted(where):
    history = base.History(where)
    assert history.notes == []
    return history.ask("SELECT count(*) FROM runs")[0][0], history.ask("SELECT count(*) FROM times")[0][0]


def test_two_nodes_that_push_and_file_at_one_time_lose_no_run(bucket, tmp_path):
    mine = [node(tmp_path, n) for n in range(2)]
    ended(*(begin("push", bucket, *paths, *paths[:2]) for paths in mine))  # two of them twice, as a retry would
    assert counted(bucket) == (12, 12)
    ended(begin("compact", bucket), begin("compact", bucket), begin("push", bucket, *node(tmp_path, 2)))
    assert counted(bucket) == (18, 18)


def test_every_command_answers_from_a_bucket_as_from_a_folder(bucket, tmp_path, capsys):
    paths = [*node(tmp_path, 0), *node(tmp_path, 1)]

    def said(where):
        told = []
        page = tmp_path / "page.html"
        for words in (["history", where], ["compare", "00000000", "00000001", "--store", where],
                      ["report", str(paths[-1]), "--store", where, "-o", str(page)]):  # fmt: skip
            assert cli.main(words) == 0
            told.append(capsys.readouterr().out.replace(where, "STORE"))
        return told, page.read_text().replace(where, "STORE")

    assert cli.main(["push", bucket, *map(str, paths)]) == 0
    assert capsys.readouterr().out.count(f"{bucket}/runs/") == 12
    unfiled = said(bucket)
    assert unfiled == said(str(tmp_path))
    assert cli.main(["compact", bucket]) == 0
    assert f"{bucket}: 12 runs filed into 2023-06/" in capsys.readouterr().out
    assert said(bucket) == unfiled


def test_what_another_node_wrote_is_listed_at_once(bucket, tmp_path):
    first, second, *_ = node(tmp_path, 0)
    ended(begin("push", bucket, first))
    assert counted(bucket) == (1, 1)  # this process has now listed the bucket
    ended(begin("push", bucket, second))
    assert counted(bucket) == (2, 2)


def cut(endpoint, sent):
    """A way to the server that lets so many bytes of one request through; returns its URL, and an event of when."""
    gate, reached = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def forward():
        client, _ = gate.accept()
        with client, socket.create_connection(endpoint) as upstream:
            left = sent
            while left and (some := client.recv(min(left, 65536))):
                upstream.sendall(some)
                left -= len(some)
                if b"100-continue" in some:
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            reached.set()
            while client.recv(65536):  # until the writer is dead
                pass

    threading.Thread(target=forward, daemon=True).start()
    return f"http://127.0.0.1:{gate.getsockname()[1]}", reached


def test_a_run_whose_writer_was_killed_half_way_is_not_there_and_can_be_pushed_again(bucket, endpoint, tmp_path):
    path = made.save(tmp_path, made.run(made.START, {f"k{i}": 1e-4 for i in range(100)}), "a.json")
    assert path.stat().st_size > 100_000
    url, reached = cut(endpoint, 50_000)  # some 2,000 of them are the head of the request
    writer = begin("push", bucket, path, AWS_ENDPOINT_URL=url)
    assert reached.wait(60)
    writer.kill()
    writer.communicate()
    store = Path(bucket.removeprefix("s3://"))
    assert s3fs.S3FileSystem(use_listings_cache=False).find(str(store)) == []
    ended(begin("push", bucket, path))
    assert counted(bucket) == (1, 100)
    (stored,) = s3fs.S3FileSystem(use_listings_cache=False).find(str(store))
    assert json.loads(s3fs.S3FileSystem().cat_file(stored)) == json.loads(path.read_text())


@pytest.mark.parametrize("command", [["history", "{}"], ["push", "{}", "{run}"], ["compact", "{}"]])
def test_a_bucket_that_may_not_be_asked_is_a_line_and_no_alarm(bucket, tmp_path, monkeypatch, capsys, command):
    path, *_ = node(tmp_path, 0)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    assert cli.main([word.format(bucket, run=path) for word in command]) == 4  # 1 is an alarm's
    error = capsys.readouterr().err
    assert "Unable to locate credentials" in error
    assert error.count("\n") == 1
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_bucket_that_is_not_there_is_a_line(endpoint, tmp_path, capsys):
    path, *_ = node(tmp_path, 0)
    assert cli.main(["push", "s3://nobody-made-this/kernels", str(path)]) == 4
    assert "The specified bucket does not exist. What was there is intact." in capsys.readouterr().err
    assert cli.main(["history", "s3://nobody-made-this/kernels"]) == 4
    assert "there is no store s3://nobody-made-this/kernels" in capsys.readouterr().err
