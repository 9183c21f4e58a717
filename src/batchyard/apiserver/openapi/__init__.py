"""OpenAPI documents: v3 for each group and version, and v2 for all."""

from batchyard.apiserver.openapi.documents import OpenApi

__all__ = ["OpenApi"]
