"""Attention in steps, from scores in memory to FlashAttention; read them in order."""
