"""Protobuf requests, which typed clients of Kubernetes send for native kinds; responses are always JSON."""

from batchyard.apiserver.protobuf.decoding import PROTOBUF, decoded
from batchyard.apiserver.protobuf.wire import BadMessage

__all__ = ["PROTOBUF", "BadMessage", "decoded"]
