"""Published peaks of GPUs, for the model FLOPs utilization (MFU)."""

import re

# Dense products in bfloat16 with sums in float32, in TFLOP/s, by torch's name of the device without
# "NVIDIA". NVIDIA's data sheets of H100, H200, B200, L4 and L40S print twice these numbers, for
# sparse matrices; the peaks of RTX cards are from the white papers of GA102, Ada and RTX Blackwell.
PEAKS = {
    r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe": 312.0,
    r"A30": 165.0,
    r"A40": 149.7,
    r"H100 80GB HBM3|H200|GH200 480GB": 989.4,
    r"H100 PCIe": 756.0,
    r"H100 NVL|H200 NVL": 835.5,
    r"B200": 2250.0,
    r"L4": 121.0,
    r"L40": 181.05,
    r"L40S": 362.05,
    r"RTX A6000": 154.8,
    r"GeForce RTX 3090": 71.0,
    r"GeForce RTX 4090": 165.2,
    r"GeForce RTX 5090": 209.5,
}


def peak_flops(device: str) -> float | None:
    """Operations in a second of a GPU with this name; None if unknown, such as a part of a GPU."""
    name = device.removeprefix("NVIDIA ")
    return next((1e12 * peak for kind, peak in PEAKS.items() if re.fullmatch(kind, name)), None)
