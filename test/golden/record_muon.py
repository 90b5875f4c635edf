"""Writes test/golden/muon_trace.hpp: matrices after four steps of torch.optim.Muon.

torch.optim.Muon makes its products in bfloat16, as the last case does, whose matrices are in
float32. For a comparison to many digits, the other cases make them in float64: only the conversion
is replaced.

    python test/golden/record_muon.py > test/golden/muon_trace.hpp    # torch 2.11
"""

import math

import torch

NUM_STEPS = 4
CASES = [
    (4, 6, {"adjust_lr_fn": "match_rms_adamw"}),
    (6, 4, {"adjust_lr_fn": "original"}),
    (5, 5, {"adjust_lr_fn": "original", "nesterov": False, "momentum": 0.8}),
    (7, 3, {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 2, "eps": 20.0}),
    (9, 12, {"adjust_lr_fn": "match_rms_adamw", "precision": "bfloat16"}),
]

to_bfloat16 = torch.Tensor.bfloat16


def trajectory(rows: int, cols: int, options: dict) -> list[float]:
    """Returns the matrix after the last step."""
    options = dict(options)
    rounds = options.pop("precision", "") == "bfloat16"
    torch.Tensor.bfloat16 = to_bfloat16 if rounds else torch.Tensor.clone
    dtype = torch.float32 if rounds else torch.float64
    places = torch.arange(rows * cols, dtype=torch.float64).reshape(rows, cols)
    x = torch.nn.Parameter(torch.cos(0.3 * places).to(dtype))
    optimizer = torch.optim.Muon([x], lr=0.05, weight_decay=0.1, **options)
    for step in range(NUM_STEPS):
        x.grad = torch.sin(0.7 * places**2 + 1.3 * step).to(dtype)
        optimizer.step()
    return x.detach().flatten().tolist()


def main() -> None:
    print("#pragma once")
    print("// Matrices after four steps of torch.optim.Muon (2.11), written by record_muon.py.\n")
    print("#include <cstdint>\n#include <vector>\n")
    print("namespace gossamer {\n")
    print("struct MuonTrace {\n  std::int64_t rows;\n  std::int64_t cols;")
    print("  const char* options;\n  /// After the last step.")
    print("  std::vector<double> matrix;\n};\n")
    print(f"inline constexpr int kMuonTraceSteps = {NUM_STEPS};\n")
    print("inline const std::vector<MuonTrace> kMuonTraces = {")
    for rows, cols, options in CASES:
        names = {"adjust_lr_fn": "adjust_lr"}
        text = ", ".join(f"{names.get(k, k)}: {str(v).lower()}" for k, v in options.items())
        numbers = ", ".join(repr(value) for value in trajectory(rows, cols, options))
        assert not math.isnan(sum(trajectory(rows, cols, options)))
        print(f'    {{{rows}, {cols}, "{text}",\n     {{{numbers}}}}},')
    print("};\n\n}  // namespace gossamer")


if __name__ == "__main__":
    main()
