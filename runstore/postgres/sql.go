package postgres

import (
	"embed"

	"github.com/tapestore/tapestore/runstore/adapter/sqlfile"
)

//go:embed sql/*.sql
var sqlFolder embed.FS

var sqlFiles = sqlfile.Load(sqlFolder)

// The statements of this engine. sqlName is the statement in sql/name.sql, which describes it.
// statement.go takes those of commits.
var (
	sqlAdminPrivileges      = sqlFiles.Statement("admin_privileges")
	sqlAdminSession         = sqlFiles.Statement("admin_session")
	sqlClockNow             = sqlFiles.Statement("clock_now")
	sqlEpochList            = sqlFiles.Statement("epoch_list")
	sqlEpochRaise           = sqlFiles.Statement("epoch_raise")
	sqlFeedLag              = sqlFiles.Statement("feed_lag")
	sqlFeedLastPosition     = sqlFiles.Statement("feed_last_position")
	sqlFeedPage             = sqlFiles.Statement("feed_page")
	sqlFeedPageNewest       = sqlFiles.Statement("feed_page", "newest")
	sqlFeedPlans            = sqlFiles.Statement("feed_plans")
	sqlFeedStrangers        = sqlFiles.Statement("feed_strangers")
	sqlFenceJudge           = sqlFiles.Statement("fence_judge")
	sqlFenceLimitIdle       = sqlFiles.Statement("fence_limit_idle")
	sqlFenceLock            = sqlFiles.Statement("fence_lock")
	sqlHistory              = sqlFiles.Statement("history")
	sqlIncarnationGuard     = sqlFiles.Statement("incarnation_guard")
	sqlIncarnationRead      = sqlFiles.Statement("incarnation_read")
	sqlIndexPage            = sqlFiles.Statement("index_page")
	sqlIndexPageNewest      = sqlFiles.Statement("index_page", "newest")
	sqlIndexPageHeads       = sqlFiles.Statement("index_page", "heads")
	sqlIndexPageHeadsNewest = sqlFiles.Statement("index_page", "heads", "newest")
	sqlJournalPage          = sqlFiles.Statement("journal_page")
	sqlLeaseAcquire         = sqlFiles.Statement("lease_acquire")
	sqlLeaseRelease         = sqlFiles.Statement("lease_release")
	sqlLeaseRenew           = sqlFiles.Statement("lease_renew")
	sqlMultiLock            = sqlFiles.Statement("multi_lock")
	sqlNoTimeout            = sqlFiles.Statement("no_timeout")
	sqlNotify               = sqlFiles.Statement("notify")
	sqlPositionBase         = sqlFiles.Statement("position_base")
	sqlPurgeLeft            = sqlFiles.Statement("purge_left")
	sqlPurgeStep            = sqlFiles.Statement("purge_step")
	sqlRecordsByKey         = sqlFiles.Statement("records_by_key")
	sqlRecordsPlaced        = sqlFiles.Statement("records_placed")
	sqlRecordsPage          = sqlFiles.Statement("records_page")
	sqlRunForgotten         = sqlFiles.Statement("run_forgotten")
	sqlRunRead              = sqlFiles.Statement("run_read")
	sqlRunnableMove         = sqlFiles.Statement("runnable_move")
	sqlRunnablePage         = sqlFiles.Statement("runnable_page")
	sqlRunnablePageNewest   = sqlFiles.Statement("runnable_page", "newest")
	sqlRunsScan             = sqlFiles.Statement("runs_scan")
	sqlRunsPage             = sqlFiles.Statement("runs_page")
	sqlRunsPageNewest       = sqlFiles.Statement("runs_page", "newest")
	sqlSchemaFind           = sqlFiles.Statement("schema_find")
	sqlSchemaFindVersions   = sqlFiles.Statement("schema_find_versions")
	sqlSchemaLock           = sqlFiles.Statement("schema_lock")
	sqlSchemaVersion        = sqlFiles.Statement("schema_version")
	sqlSessionCheck         = sqlFiles.Statement("session_check")
	sqlSessionCheckHidden   = sqlFiles.Statement("session_check_hidden")
	sqlSessionRead          = sqlFiles.Statement("session_read")
	sqlTermsRead            = sqlFiles.Statement("terms_read")
	sqlVersionRead          = sqlFiles.Statement("version_read")
	sqlWrite                = sqlFiles.Statement("write")
	sqlWriteDemand          = sqlFiles.Statement("write", "demand")
	sqlWriteSettle          = sqlFiles.Statement("write_settle")
)
