"""Attention in steps, from scores in memory to FlashAttention, the backward pass too; read them in order."""
