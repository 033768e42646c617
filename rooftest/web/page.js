"use strict";
// Points: the nearest one within 24 pixels of the pointer speaks, arrow keys move the focus, Escape hides what was said.
const REACH = 24;
for (const plot of document.querySelectorAll(".plot")) {
  const points = [...plot.querySelectorAll(".point")];
  const tip = plot.querySelector(".tip");
  if (!points.length || !tip) continue;
  let now = null;
  const centre = (point) => {
    const box = point.lastElementChild.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  const show = (point) => {
    if (point === now) return;
    plot.querySelectorAll(".on").forEach((one) => one.classList.remove("on"));
    now = point;
    tip.hidden = !point;
    if (!point) return;
    point.classList.add("on");
    plot.querySelector(`.moved[data-arrow="${point.dataset.arrow}"]`)?.classList.add("on");
    tip.textContent = point.dataset.tip;
    const frame = plot.getBoundingClientRect();
    const [x, y] = centre(point);
    const right = document.documentElement.clientWidth - frame.x - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8 - frame.x, Math.min(x - frame.x + 14, right))}px`;
    const below = y - frame.y + 14;
    tip.style.top = `${below + tip.offsetHeight > frame.height ? y - frame.y - tip.offsetHeight - 14 : below}px`;
  };
  const nearest = (event) => {
    let best = null, least = REACH * REACH;
    for (const point of points) {
      const [x, y] = centre(point), d = (x - event.clientX) ** 2 + (y - event.clientY) ** 2;
      if (d < least && getComputedStyle(point).opacity > 0.5) [best, least] = [point, d];
    }
    return best;
  };
  plot.addEventListener("pointermove", (event) => show(nearest(event) ?? points.find((p) => p === document.activeElement)));
  plot.addEventListener("pointerdown", (event) => show(nearest(event)));
  plot.addEventListener("pointerleave", () => show(points.find((p) => p === document.activeElement)));
  plot.addEventListener("focusin", (event) => show(event.target.closest(".point")));
  plot.addEventListener("focusout", () => show(null));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return show(null);
    const at = points.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: points.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = points[(to + points.length) % points.length];
    points[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}
// A kernel of the legend: its points stand out of all charts of its GPU.
for (const button of document.querySelectorAll("[data-kernel]")) {
  button.addEventListener("click", () => {
    const card = button.closest(".card"), on = button.getAttribute("aria-pressed") !== "true";
    for (const one of card.querySelectorAll("[data-kernel]"))
      one.setAttribute("aria-pressed", String(on && one.dataset.kernel === button.dataset.kernel));
    for (const plot of card.querySelectorAll(".roofline .plot")) {
      plot.classList.toggle("picked", on);
      for (const one of plot.querySelectorAll("[data-of]")) one.classList.toggle("same", one.dataset.of === button.dataset.kernel);
    }
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
// A wall that nobody feeds must not look green: more than a night and a half old is said in red.
for (const age of document.querySelectorAll(".age")) {
  const hours = (Date.now() - Date.parse(age.dataset.created)) / 36e5;
  if (hours > 36) {
    age.classList.add("old");
    age.textContent = `no run for ${Math.floor(hours / 24)} days: ${age.textContent}`;
  }
}
