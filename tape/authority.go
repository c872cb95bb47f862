package tape

// Authority is what a write to a run needs where fences are required.
type Authority int

const (
	// Driver: the fence of the run's current grant. These writes decide what the run does next,
	// so two drivers must never both make them.
	Driver Authority = iota
	// Grants: nothing. The operation is where grants come from.
	Grants
	// Claim: the claim of a piece of work, which its report names by generation, or by owner where it
	// is a task. The work outlives the run's lease, and often the run.
	Claim
	// Anyone: nothing. The write states a fact that does not depend on its reporter: a signal, an
	// observation, an operator's decision.
	Anyone
)

// String returns the authority's name in tables.
func (a Authority) String() string {
	return [...]string{"driver", "grants", "claim", "anyone"}[a]
}

// Authorities returns what each writing RPC of Tape's protocol needs, by its name. A fence that is
// presented is always checked.
func Authorities() map[string]Authority {
	return map[string]Authority{
		"BeginRun": Grants, "ResumeRun": Grants, "EndRun": Driver,
		"EndRun(CANCELLED)": Anyone, // an operator's decision
		"RecordDecision":    Driver,
		"BeginEffect":       Driver,
		"CompleteEffect":    Driver, "CompleteEffect(OUTBOX)": Claim, // which a dispatcher has called
		"ReconcileEffect": Anyone, "RecordExternalObservation": Anyone,
		"ClaimEffectDispatch": Claim, "RecordDispatchAttempt": Claim,
		"RegisterCompensation": Driver,
		"ClaimObligation":      Claim, "RecordObligationAttempt": Claim, "ResolveObligation": Claim,
		"SetBudget": Anyone, "ChargeBudget": Driver,
		"AwaitSignal": Driver, "SendSignal": Anyone,
		"SetTimer": Anyone, "CancelTimer": Anyone,
		"CompactRun":    Anyone,
		"CreateSession": Anyone, "DeleteSession": Anyone, "AppendEvent": Anyone,
		"WriteValue": Anyone, "DeleteValue": Anyone,
		"RegisterReaction": Anyone, "DeregisterReaction": Anyone,
		"ClaimTasks": Claim, "CompleteTask": Claim, "NackTask": Claim,
	}
}

var authorities = Authorities()
