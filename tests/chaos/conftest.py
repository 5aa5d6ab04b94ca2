"""The same shards, checkpoint and configurations as the integration tests."""

from tests.integration.conftest import checkpoint, photos, write_config

__all__ = ["checkpoint", "photos", "write_config"]
