-- Create the schema.
CREATE SCHEMA {schema}
