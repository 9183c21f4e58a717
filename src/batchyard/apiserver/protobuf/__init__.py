"""Requests in protobuf, which the typed clients of Kubernetes send for its own kinds; answers are always JSON."""

from batchyard.apiserver.protobuf.decoding import PROTOBUF, decoded
from batchyard.apiserver.protobuf.wire import BadMessage

__all__ = ["PROTOBUF", "BadMessage", "decoded"]
