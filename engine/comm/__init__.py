"""Communication between ranks: tensor-parallel collectives and pipeline transfers."""
