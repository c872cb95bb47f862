package spanner

import (
	"embed"

	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed sql/*.sql
var sqlFolder embed.FS

var sqlFiles = sqlfile.Load(sqlFolder)

// The statements of this engine. sqlName is the statement in sql/name.sql, which describes it. Those
// with several parts are in [guardShape] and [scans].
var (
	sqlClockNow        = sqlFiles.Statement("clock_now")
	sqlEpochEndGrants  = sqlFiles.Statement("epoch_end_grants")
	sqlEpochRead       = sqlFiles.Statement("epoch_read")
	sqlFeedPage        = sqlFiles.Statement("feed_page")
	sqlFeedNewest      = sqlFiles.Statement("feed_page", "newest")
	sqlRecordsPlaced   = sqlFiles.Statement("records_placed")
	sqlRunRead         = sqlFiles.Statement("run_read")
	sqlSchemaEmptyFeed = sqlFiles.Statement("schema_empty_feed")
	sqlSchemaPolicies  = sqlFiles.Statement("schema_policies")
	sqlSchemaTables    = sqlFiles.Statement("schema_tables")
	sqlTermsRead       = sqlFiles.Statement("terms_read")
)
