package protocol

import "github.com/tapestore/tapestore/tapeserver/tapepb"

const (
	runnable     = tapepb.RunStatus_RUN_STATUS_RUNNABLE
	running      = tapepb.RunStatus_RUN_STATUS_RUNNING
	waiting      = tapepb.RunStatus_RUN_STATUS_WAITING
	terminal     = tapepb.RunStatus_RUN_STATUS_TERMINAL
	runFailed    = tapepb.RunStatus_RUN_STATUS_FAILED
	compensating = tapepb.RunStatus_RUN_STATUS_COMPENSATING
	cancelled    = tapepb.RunStatus_RUN_STATUS_CANCELLED

	pending   = tapepb.EffectStatus_EFFECT_STATUS_PENDING
	confirmed = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
	failed    = tapepb.EffectStatus_EFFECT_STATUS_FAILED
	unknown   = tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN

	idempotent    = tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT
	nonIdempotent = tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT

	inline = tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_INLINE
	outbox = tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX

	owed        = tapepb.ObligationStatus_OBLIGATION_STATUS_PENDING
	committed   = tapepb.ObligationStatus_OBLIGATION_STATUS_COMMITTED
	compensated = tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED
	stuck       = tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK
)
