// Package telemetry measures the operations of a store with OpenTelemetry: a span, a latency and an
// outcome for each operation, the sizes of writes, refused writes, grants and takeovers. [Wrap]
// wraps the handle of any engine, so that every engine is measured alike, at the contract and not
// below it. docs/observability.md lists the metrics.
//
// A wrapped store keeps the guarantees and the capabilities of its engine (runstore.As). Calls of
// CommitMulti and of stale reads are measured; an operation that only reads is a span only within a
// trace, so that polls in the background make none; calls of other capabilities reach the engine's store
// directly.
//
// The package uses OpenTelemetry's API only. Without an SDK an operation costs a fraction of a
// microsecond more (BenchmarkCommit). Run ids, owners and tokens are attributes of spans and of log
// lines, and never labels of metrics.
package telemetry
