//! Each way in which a database does not pass the check at the start of a service.

use microblog_record::{Error, Unusable};
use microblog_testkit::PostgresServer;

use crate::{open, open_url};

/// Returns why a database does not pass.
async fn reason(url: &str) -> Unusable {
    let checked = open_url(url).check().await;
    match checked {
        Err(Error::Unusable(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_usable_database_passes_while_others_are_checked() {
    let server = PostgresServer::start().await;
    let checks = (0..8).map(|_| async { open(&server).check().await.unwrap() });
    futures::future::join_all(checks).await;
    assert_eq!(server.sql("SELECT COUNT(*) FROM start_checks"), "0", "it leaves nothing behind");
}

#[tokio::test]
async fn an_encoding_that_lacks_characters_is_refused() {
    let server = PostgresServer::start().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = encoding.to_lowercase();
        server.sql(&format!("CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0"));
        let url = format!("postgres://postgres@127.0.0.1:{}/{name}", server.port());
        let reason = reason(&url).await;
        assert!(matches!(&reason, Unusable::Encoding(found) if found == encoding), "{reason:?}");
        assert!(reason.to_string().contains(encoding), "{reason}");
    }
}

/// As of an engine that has the function, and no locks.
#[tokio::test]
async fn a_lock_that_does_not_lock_is_refused() {
    let server = PostgresServer::start().await;
    server.sql(
        "CREATE SCHEMA fake; \
         CREATE FUNCTION fake.pg_advisory_xact_lock(BIGINT) RETURNS VOID LANGUAGE SQL AS ''; \
         ALTER ROLE postgres SET search_path = fake, pg_catalog, public",
    );
    let reason = reason(&server.url()).await;
    assert!(matches!(reason, Unusable::NoLock), "{reason:?}");
}

/// As of an engine whose statements read at a timestamp before the commit.
#[tokio::test]
async fn a_statement_that_misses_a_commit_is_refused() {
    let server = PostgresServer::start().await;
    server.sql(
        "CREATE TABLE start_checks (number BIGINT NOT NULL PRIMARY KEY); \
         CREATE FUNCTION lose() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER lost BEFORE INSERT ON start_checks FOR EACH ROW EXECUTE FUNCTION lose()",
    );
    let reason = reason(&server.url()).await;
    assert!(matches!(reason, Unusable::OldSnapshot), "{reason:?}");
}

#[tokio::test]
async fn a_role_that_may_not_write_is_refused() {
    let server = PostgresServer::start().await;
    server.sql("CREATE ROLE reader LOGIN");
    let creating = reason(&server.url_of("reader", "")).await;
    assert!(matches!(creating, Unusable::NoRights(_)), "{creating:?}");
    open(&server).check().await.unwrap();
    server.sql("GRANT SELECT ON start_checks TO reader");
    let writing = reason(&server.url_of("reader", "")).await;
    assert!(matches!(writing, Unusable::NoRights(_)), "{writing:?}");
}

/// In a switchover, the address soon leads to the primary.
#[tokio::test]
async fn a_standby_is_an_unavailable_database() {
    let primary = PostgresServer::start_primary().await;
    let standby = primary.start_standby().await;
    let database = open_url(&standby.url());
    let error = database.check().await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    database.check_at_start().await.unwrap();
}

/// Two services, one of which owns the schema that is in each search path.
#[tokio::test]
async fn a_table_of_another_schema_is_not_taken_for_the_own_one() {
    let server = PostgresServer::start().await;
    open(&server).check().await.unwrap();
    server.sql("CREATE ROLE other LOGIN; CREATE SCHEMA other AUTHORIZATION other");
    open_url(&server.url_of("other", "")).check().await.unwrap();
    let tables = "SELECT COUNT(*) FROM pg_tables WHERE tablename = 'start_checks'";
    assert_eq!(server.sql(tables), "2");
}

#[tokio::test]
async fn an_engine_without_a_function_is_refused() {
    let server = PostgresServer::start().await;
    server.sql("ALTER FUNCTION pg_advisory_xact_lock(BIGINT) RENAME TO pg_advisory_xact_lock_not");
    let reason = reason(&server.url()).await;
    assert!(matches!(reason, Unusable::Statement(_)), "{reason:?}");
}

#[tokio::test]
async fn an_unreachable_database_does_not_stop_a_start() {
    let server = PostgresServer::start().await;
    let database = open(&server);
    server.kill();
    database.check_at_start().await.unwrap();
    let error = database.check().await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    server.restart().await;
    database.check().await.unwrap();
}
