"""What clients read of the fields of objects: OpenAPI v3, a document for each group and version, and v2, all in one."""

from batchyard.apiserver.openapi.documents import OpenApi

__all__ = ["OpenApi"]
