"""TODO."""

from __future__ import annotations

from langgraph_durable._postgres.statement import Statement

# --- locks: transaction-scoped only, so that they hold behind pgbouncer and go with their transaction ---

LOCK_SETUP = Statement("SELECT pg_advisory_xact_lock(hashtextextended('setup ' || {schema_name}, 0))")


# --- schema ---

# Not to_regnamespace and to_regclass: in a transaction that waited for an advisory lock, their caches still hold
# what was there before. The cast to name cuts a long name as CREATE does.
FIND_SCHEMA = Statement(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_name}::name)"
)

FIND_MIGRATIONS_TABLE = Statement("""
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name}::name AND c.relname = 'schema_migrations'
)
""")

CREATE_SCHEMA = Statement("CREATE SCHEMA {schema}")

CREATE_MIGRATIONS_TABLE = Statement("""
CREATE TABLE {schema}.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
""")

LIST_MIGRATIONS = Statement("SELECT version, name, checksum FROM {schema}.schema_migrations ORDER BY version")

RECORD_MIGRATION = Statement(
    "INSERT INTO {schema}.schema_migrations (version, name, checksum) VALUES (%s, %s, %s)"
)
