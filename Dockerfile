# docker build -t ablate . && docker run --rm -v "$PWD/outputs:/ablate/outputs" ablate
# docker run --rm ablate pytest
FROM python:3.11-slim
# g++ compiles attention with scores that have no fused kernel; git says which commit a run is of.
RUN apt-get update && apt-get install -y --no-install-recommends git g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /ablate
COPY . .
RUN pip install --no-cache-dir -e '.[dev]'
ENTRYPOINT []
CMD ["python", "-m", "ablate"]
