# docker build -t posttrain . && docker run --rm -it posttrain
# Trains the built-in model on a CPU.
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

COPY constraints.txt pyproject.toml README.md LICENSE /src/
COPY posttrain /src/posttrain
# torch alone from its own index (CPU builds are not on PyPI), everything else from PyPI
RUN version=$(sed -n 's/^torch==//p' /src/constraints.txt) \
    && pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" "torch==$version" \
    && pip install --no-cache-dir -c /src/constraints.txt /src

RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
ENV HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

ENTRYPOINT ["posttrain"]
CMD ["run", "grpo", "--task", "arithmetic"]
