"""In a C++ program

The network and its error bar become machine code in one package, and a C++ program with libtorch asks it
about rows. There is no Python at run time.
"""

# %%
import subprocess
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import nn

import trustgp

generator = torch.Generator().manual_seed(0)
inputs = torch.rand(300, 1, generator=generator) * 4 - 2
targets = torch.sin(2 * inputs) + 0.1 * torch.randn(300, 1, generator=generator)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(500):
    optimiser.zero_grad()
    (network(inputs[:200]) - targets[:200]).square().mean().backward()
    optimiser.step()
model = trustgp.fit(
    network.eval(), (inputs[:200], targets[:200]), validation=(inputs[200:], targets[200:]), progress=False
)

# %%
# **Compile it**: machine code for this kind of processor, compared with `predict` before it is kept. With the
# program below this takes a C++ compiler and about a minute.
trustgp.compile(model, "curve.pt2", inputs[:20])

# %%
# **Build the program** `examples/cpp` of the repository; here with the compiler alone, for cmake see [the
# page](../compile.md#from-c).
home = Path(torch.__file__).parent
flags = [
    f"-I{home}/include",
    f"-I{home}/include/torch/csrc/api/include",
    f"-L{home}/lib",
    f"-Wl,-rpath,{home}/lib",
]
flags += [
    "-ltorch",
    "-ltorch_cpu",
    "-lc10",
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
]
subprocess.run(["g++", "-std=c++20", "-O0", "examples/cpp/main.cpp", "-o", "serve", *flags], check=True)

# %%
# **Ask it** about 101 rows: it prints a line for each answer, with its type and its numbers.
x = torch.linspace(-4, 4, 101)[:, None]
text = "\n".join(str(float(value)) for value in x)
done = subprocess.run(["./serve", "curve.pt2"], input=text, capture_output=True, text=True, check=True)
answers = {}
for line in done.stdout.splitlines():
    name, kind, *values = line.split()
    answers[name] = torch.tensor([float(value) for value in values])
    print(f"{name:19} {kind:7} {' '.join(f'{float(value):.3f}' for value in values[:4])} ...")
std = answers["variance"].sqrt()
print(f"largest relative difference to Python: {(std / model.predict(x).std[:, 0] - 1).abs().max():.1e}")

# %%
figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(inputs[:200], targets[:200], ".", color="grey", ms=3, label="training rows")
axes.plot(x, answers["mean"], label="network, from C++")
axes.fill_between(
    x[:, 0], answers["mean"] - 2 * std, answers["mean"] + 2 * std, alpha=0.25, label="2 std, from C++"
)
axes.set(title="What the C++ program says", xlabel="input")
axes.legend(fontsize="small")

# %%
# **When not to use it.** The package runs on the kind of processor that compiled it, and it is code: open
# only files that you trust. The machine code does not check what it is given, so your program must. If that
# is too much, take [ONNX](onnx_file.md).
