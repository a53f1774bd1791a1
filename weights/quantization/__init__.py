"""Quantization schemes: read, dequantize and write quantized weights."""
