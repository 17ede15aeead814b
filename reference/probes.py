"""The perturbations of zeroth-order training, drawn as plimsoll draws them: a function of (seed, step, direction, name,
element). Philox 4x32 with ten rounds (Salmon et al., 2011), then Box and Muller's pairs.
"""

import numpy as np

U32, U64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def name_hash(name: str) -> int:
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & U64
    return value


def stream_of(parameter: str) -> int:
    return name_hash(f"{parameter}/probe")


def philox(counter: list[np.ndarray], key: list[int]) -> list[np.ndarray]:
    low = np.uint64(U32)
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (b >> np.uint64(32)) ^ counter[1] ^ np.uint64(key[0]),
            b & low,
            (a >> np.uint64(32)) ^ counter[3] ^ np.uint64(key[1]),
            a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & U32, (key[1] + 0xBB67AE85) & U32]
    return counter


def numbers(seed: int, step: int, stream: int, elements: np.ndarray) -> np.ndarray:
    """32 random bits for each of these elements (fewer than 2^32)."""
    rotated = ((stream << 17) | (stream >> 47)) & U64
    mixed = seed ^ rotated ^ ((stream * 0x9E3779B97F4A7C15) & U64)
    zeros = np.zeros(len(elements), dtype=np.uint64)
    counter = [(elements // 4).astype(np.uint64), zeros, zeros + np.uint64(step), zeros]
    quad = np.stack(philox(counter, [mixed & U32, mixed >> 32]))
    return quad[elements % 4, np.arange(len(elements))]


def subspace(stream: int, dimension: int, elements: int) -> tuple[np.ndarray, np.ndarray]:
    """The coordinate and the sign of each element of a parameter."""
    index = np.arange(elements)
    turns = (numbers(0, 1, stream, index // dimension) * np.uint64(dimension)) >> np.uint64(32)
    bits = numbers(0, 0, stream, index // 32) >> (index % 32).astype(np.uint64)
    return (index + turns.astype(np.int64)) % dimension, 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float64)


def normals(seed: int, step: int, direction: int, stream: int, elements: np.ndarray) -> np.ndarray:
    """Standard normal numbers of these elements (fewer than 2^32) as f32."""
    name = (stream + direction) & U64
    rotated = ((name << 17) | (name >> 47)) & U64
    mixed = seed ^ rotated ^ ((name * 0x9E3779B97F4A7C15) & U64)
    zeros = np.zeros(len(elements), dtype=np.uint64)
    counter = [(elements // 4).astype(np.uint64), zeros, zeros + np.uint64(step), zeros]
    quad = np.stack(philox(counter, [mixed & U32, mixed >> 32]))
    pair = 2 * ((elements // 2) % 2)
    unit = lambda bits: ((bits >> np.uint64(8)).astype(np.float32) / np.float32(2**24)).astype(np.float32)
    first, second = (unit(quad[pair + offset, np.arange(len(elements))]) for offset in (0, 1))
    logarithm = np.log((np.float32(1) - first).astype(np.float64)).astype(np.float32)
    radius = np.sqrt(np.float32(-2) * logarithm)
    angle = (np.float32(2 * np.pi) * second).astype(np.float64)
    part = np.where(elements % 2 == 0, np.cos(angle), np.sin(angle)).astype(np.float32)
    return radius * part
