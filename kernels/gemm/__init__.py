"""GEMM in eight steps, from naive to the state of the art; read them in order."""
