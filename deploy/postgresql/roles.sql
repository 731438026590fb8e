-- A role for each service that has its data in SQL, and a schema of its own, in the database of this
-- connection. PostgreSQL looks for tables in the schema of the role's name first. No
-- role can use the schema of another, and none can write to `public`.
--
--   export DATABASE_PASSWORDS=/run/secrets/database
--   psql --dbname=microblog --file=deploy/postgresql/roles.sql
--
-- DATABASE_PASSWORDS is a directory with one file for each role, `user`, `relation`, `post` and `notice`. Run it
-- as a superuser, or as the database's owner with CREATEROLE. It may be repeated, and then sets the
-- passwords again. The image of PostgreSQL runs it at its first start.
\set ON_ERROR_STOP on
\set user_password `cat "$DATABASE_PASSWORDS/user"`
\set relation_password `cat "$DATABASE_PASSWORDS/relation"`
\set post_password `cat "$DATABASE_PASSWORDS/post"`
\set notice_password `cat "$DATABASE_PASSWORDS/notice"`

-- psql continues after a failed command, and an empty password would remove the one that there is.
SELECT '' IN (:'user_password', :'relation_password', :'post_password', :'notice_password') AS has_empty
\gset
\if :has_empty
    DO $$ BEGIN RAISE 'a password in $DATABASE_PASSWORDS is missing or empty'; END $$;
\endif

BEGIN;

SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY['user', 'relation', 'post', 'notice']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

-- A reserved word, in quotes.
ALTER ROLE "user" LOGIN PASSWORD :'user_password';
ALTER ROLE relation LOGIN PASSWORD :'relation_password';
ALTER ROLE post LOGIN PASSWORD :'post_password';
ALTER ROLE notice LOGIN PASSWORD :'notice_password';

-- Also the temporary tables of other roles.
SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()) \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO "user", relation, post, notice', current_database()) \gexec
REVOKE ALL ON SCHEMA public FROM PUBLIC;

-- Only members of a role can give it a schema.
GRANT "user", relation, post, notice TO CURRENT_USER;
CREATE SCHEMA IF NOT EXISTS "user" AUTHORIZATION "user";
CREATE SCHEMA IF NOT EXISTS relation AUTHORIZATION relation;
CREATE SCHEMA IF NOT EXISTS post AUTHORIZATION post;
CREATE SCHEMA IF NOT EXISTS notice AUTHORIZATION notice;
REVOKE "user", relation, post, notice FROM CURRENT_USER;

COMMIT;
