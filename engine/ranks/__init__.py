"""The rank processes of a model that runs on several devices: start, rendezvous, supervision."""
