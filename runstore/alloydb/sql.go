package alloydb

import (
	"embed"

	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed sql/*.sql
var sqlFolder embed.FS

var sqlFiles = sqlfile.Load(sqlFolder)

// sqlStandbyLag is the statement in sql/standby_lag.sql, which describes it.
var sqlStandbyLag = sqlFiles.Statement("standby_lag")
