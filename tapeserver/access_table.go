package tapeserver

import (
	"path"
	"strings"

	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// subjectOfCall is what a method concerns, which decides what a principal that is limited to tenants
// may do with it.
type subjectOfCall int

const (
	// shared: what runs of all tenants share. Principals that are limited to tenants are refused.
	shared subjectOfCall = iota
	// oneRun: the field run_id names the run.
	oneRun
	// newRun: the field tenant_id names the tenant, and the run may exist.
	newRun
	// runOrSession: the field run_id names the run or, if it is empty, the session's runs of the
	// principal's tenants are meant.
	runOrSession
	// filtered: the reply is a list, or a stream, of what several runs have. A principal that is limited
	// to tenants gets the part of their runs.
	filtered
	// noRun: the method concerns the server.
	noRun
)

// access is what a method needs.
type access struct {
	role    auth.Role
	subject subjectOfCall
	why     whyRefused // set if the subject is shared
}

// whyRefused is the reason for which principals that are limited to tenants may not call a method.
type whyRefused string

const (
	whySession  whyRefused = "a session has no tenant: agents of several tenants may keep one"
	whyValue    whyRefused = "a value has no tenant: agents of several tenants may share one"
	whyReaction whyRefused = "a reaction matches the entries of all tenants"
	whyTask     whyRefused = "a task has no tenant: it outlives the run whose entry it holds, and a later entry of another run may replace that"
)

// accesses are the methods of tape.v1.Tape with the roles and subjects of their calls.
var accesses = map[string]access{
	"GetRun": {auth.Read, oneRun, ""}, "GetDecision": {auth.Read, oneRun, ""}, "GetEffect": {auth.Read, oneRun, ""},
	"ListObligations": {auth.Read, oneRun, ""}, "AdmitBudget": {auth.Read, oneRun, ""}, "SubscribeRun": {auth.Read, oneRun, ""},

	"ListRunsToRecover": {auth.Read, filtered, ""}, "ListPendingEffects": {auth.Read, filtered, ""},
	"ListEffectsToDispatch": {auth.Read, filtered, ""}, "ListUnresolvedObligations": {auth.Read, filtered, ""},
	"ListCompactableRuns": {auth.Read, filtered, ""},
	"SubscribeEvents":     {auth.Read, filtered, ""}, "SubscribeBySubject": {auth.Read, filtered, ""},

	"ListReactions": {auth.Read, shared, whyReaction}, "ListTasks": {auth.Read, shared, whyTask},
	"GetValue": {auth.Read, shared, whyValue}, "WatchValue": {auth.Read, shared, whyValue},
	"GetSession": {auth.Read, shared, whySession}, "ListSessions": {auth.Read, shared, whySession},

	"BeginRun":  {auth.Drive, newRun, ""},
	"ResumeRun": {auth.Drive, oneRun, ""}, "EndRun": {auth.Drive, oneRun, ""}, "RecordDecision": {auth.Drive, oneRun, ""},
	"BeginEffect": {auth.Drive, oneRun, ""}, "CompleteEffect": {auth.Drive, oneRun, ""}, "ReconcileEffect": {auth.Drive, oneRun, ""},
	"ClaimEffectDispatch": {auth.Drive, oneRun, ""}, "RecordDispatchAttempt": {auth.Drive, oneRun, ""}, "RecordExternalObservation": {auth.Drive, oneRun, ""},
	"RegisterCompensation": {auth.Drive, oneRun, ""}, "ResolveObligation": {auth.Drive, oneRun, ""},
	"ClaimObligation": {auth.Drive, oneRun, ""}, "RecordObligationAttempt": {auth.Drive, oneRun, ""},
	"SetBudget": {auth.Drive, oneRun, ""}, "ChargeBudget": {auth.Drive, oneRun, ""}, "AwaitSignal": {auth.Drive, oneRun, ""},
	"SetTimer": {auth.Drive, oneRun, ""}, "CancelTimer": {auth.Drive, oneRun, ""},

	"ListDueTimers": {auth.Drive, filtered, ""}, // with claim it fires them

	"ClaimTasks": {auth.Drive, shared, whyTask}, "CompleteTask": {auth.Drive, shared, whyTask}, "NackTask": {auth.Drive, shared, whyTask},
	"WriteValue": {auth.Drive, shared, whyValue}, "DeleteValue": {auth.Drive, shared, whyValue},
	"CreateSession": {auth.Drive, shared, whySession}, "DeleteSession": {auth.Drive, shared, whySession}, "AppendEvent": {auth.Drive, shared, whySession},

	// A gate holds a run until a decision that its driver must not make.
	"SendSignal":       {auth.Operate, runOrSession, ""},
	"CompactRun":       {auth.Operate, oneRun, ""},
	"RegisterReaction": {auth.Operate, shared, whyReaction}, "DeregisterReaction": {auth.Operate, shared, whyReaction},
}

// probe is the only method without authentication: orchestrators and load balancers have no
// credentials. Watch needs them, because a stream occupies memory as long as its client likes.
const probe = "/grpc.health.v1.Health/Check"

// accessOf returns what a method needs; false for a method without an entry, which is refused.
func accessOf(method string) (access, bool) {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	switch service {
	case tapepb.Tape_ServiceDesc.ServiceName + "/":
		a, ok := accesses[name]
		return a, ok
	case "grpc.health.v1.Health/", "grpc.reflection.v1.ServerReflection/", "grpc.reflection.v1alpha.ServerReflection/":
		return access{role: auth.Read, subject: noRun}, true
	default:
		return access{}, false
	}
}
