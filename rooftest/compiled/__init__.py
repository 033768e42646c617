"""What a compiler made of a kernel, read from its machine code without a GPU."""
