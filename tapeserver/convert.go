package tapeserver

import (
	"math"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// millis returns a time in milliseconds since 1970, the unit of the wire; 0 for the zero time.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// clockOf returns the time of a now_ms field. 0 or less means the store clock, the zero time.
func clockOf(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// durationOf returns the duration of a …_ttl_ms field. A value too large for a duration becomes the
// longest one, which is above every limit too.
func durationOf(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(max(ms, 0)) * time.Millisecond
}

// leaseTTL returns the TTL that a request of the reactor names, or else the one that Options.LeaseTTL
// has for the reactor; 0 means the protocol's default.
func (s *service) leaseTTL(ms int64, reactor string) time.Duration {
	if ms > 0 {
		return durationOf(ms)
	}
	return s.opts.LeaseTTL[runstore.Reactor(reactor)]
}

// limitOf returns a limit field; 0 means the method's default.
func limitOf(limit int64) int { return int(min(max(limit, 0), math.MaxInt32)) }

// text returns a stored text as UTF-8, the encoding of the wire. Entries and owners that were written past
// the server may have other bytes, which are replaced: a message with them would end a stream, or a list,
// at the same place each time.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func runState(r tape.Run) *tapepb.RunState {
	return &tapepb.RunState{
		RunId: string(r.ID), AppName: r.App, UserId: r.User, SessionId: r.Session, InvocationId: r.Invocation,
		Status: tapepb.RunStatus(r.Status), SeqCursor: int64(r.LastSeq),
		LeaseOwner: text(r.LeaseOwner), LeaseExpiresAtMs: millis(r.LeaseExpiresAt),
		StartedAtMs: millis(r.StartedAt), EndedAtMs: millis(r.EndedAt), WaitingOnGate: r.WaitingOn,
		TenantId: r.Tenant, Actor: r.Actor, Subject: r.Subject, AgentId: r.AgentID,
		AiplexInstanceId: r.InstanceID, GatewayRoute: r.GatewayRoute, Scopes: r.Scopes, Labels: r.Labels,
		Token: int64(r.Token), Reactor: text(r.Reactor),
	}
}

func journalEntry(e tape.Entry) *tapepb.JournalEntry {
	return &tapepb.JournalEntry{
		Seq: int64(e.Seq), Kind: text(e.Kind), PayloadJson: text(e.Payload), TsMs: millis(e.Time),
		GlobalSeq: int64(e.Position), Subject: text(e.Subject), SchemaVersion: 1,
	}
}

func eventEntry(e tape.Entry) *tapepb.EventEntry {
	return &tapepb.EventEntry{
		RunId: text(string(e.Run)), Seq: int64(e.Seq), Kind: text(e.Kind), PayloadJson: text(e.Payload), TsMs: millis(e.Time),
		GlobalSeq: int64(e.Position), Subject: text(e.Subject), SchemaVersion: 1,
	}
}

func decisionRecord(run string, d tape.Decision) *tapepb.DecisionRecord {
	return &tapepb.DecisionRecord{
		RunId: run, Seq: int64(d.Seq), DecisionIndex: d.Index, Model: d.Model,
		RequestJson: d.Request, ResponseJson: d.Response, Rationale: d.Rationale,
		PolicyVersion: d.PolicyVersion, TsMs: millis(d.Time),
	}
}

func effectRecord(e tape.Effect) *tapepb.EffectRecord {
	return &tapepb.EffectRecord{
		RunId: string(e.Run), Seq: int64(e.Seq), DecisionIndex: e.Decision, ToolName: e.Tool,
		IdempotencyKey: e.Key, Status: tapepb.EffectStatus(e.Status),
		RequestJson: e.Request, ResponseJson: e.Response, ErrorJson: e.Error, TsMs: millis(e.Time),
		Semantics: tapepb.EffectSemantics(e.Semantics), DispatchMode: tapepb.EffectDispatchMode(e.Mode),
		BusinessKey: e.BusinessKey, Connector: e.Connector, Scope: e.Scope,
		DispatchAttempts: e.DispatchAttempts, NextDispatchAtMs: millis(e.NextDispatch),
		ExternalRef: e.ExternalRef, DispatchClaimedBy: e.DispatchClaimedBy,
		DispatchClaimExpiresAtMs: millis(e.DispatchClaimExpires), LastDispatchError: e.LastDispatchError,
		DispatchClaimGeneration: e.Claims,
	}
}
