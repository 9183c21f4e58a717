"""batchyard: a multi-tenant batch platform that decides who runs where and when, and says why."""
