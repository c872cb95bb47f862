package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// spanOptions are those of every span of the store: to the store's caller, an engine is a remote
// service.
var spanOptions = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}

// observation is one operation while it runs.
type observation struct {
	s       *measured
	op      operation
	ctx     context.Context // the caller's
	began   time.Time
	span    trace.Span
	retries *outcome.Retries
}

// begin begins the observation of an operation. ok is false if nothing collects spans, metrics or
// log lines; the observation is then not to be ended.
func (s *measured) begin(ctx context.Context, op operation) (_ context.Context, o observation, ok bool) {
	o = observation{s: s, op: op, ctx: ctx, span: noop.Span{}}
	if s.traces() && (op.writes() || trace.SpanContextFromContext(ctx).IsValid()) {
		ctx, o.span = s.tracer.Start(ctx, spanNames[op], spanOptions...)
	}
	if !o.span.IsRecording() && !s.observes(ctx) {
		return o.ctx, o, false
	}
	ctx, o.retries = outcome.WithRetries(ctx)
	o.began = time.Now()
	return ctx, o, true
}

// writes reports whether an operation changes a run. The reads of work in the background, such as
// the polls of the feed, are no spans: an operation that only reads is one only within a trace.
func (op operation) writes() bool {
	switch op {
	case opCreateRun, opAcquireLease, opRenewLease, opReleaseLease, opCommit, opCommitMulti:
		return true
	default:
		return false
	}
}

// noProvider is OpenTelemetry's global tracer provider while no SDK is installed. Its spans record
// nothing and are allocated all the same, so no span is started then. It is nil, which costs only
// the allocations, if another package installed an SDK first or if the type got another name.
var noProvider = func() trace.TracerProvider {
	if p := otel.GetTracerProvider(); fmt.Sprintf("%T", p) == "*global.tracerProvider" {
		return p
	}
	return nil
}()

// traces reports whether spans may be recorded.
func (s *measured) traces() bool { return !s.global || otel.GetTracerProvider() != noProvider }

// observes reports whether metrics or log lines are collected.
func (s *measured) observes(ctx context.Context) bool {
	return s.log.to != nil || s.in.duration.Enabled(ctx)
}

// end ends the observation of an operation on a run, "" for none.
func (o *observation) end(id runstore.RunID, class string, err error) {
	took := time.Since(o.began)
	in := o.s.in
	in.duration.Record(o.ctx, took.Seconds(), in.byOutcome[o.op][class]...)
	retries := o.retries.Count()
	if retries > 0 {
		in.retries.Add(o.ctx, retries, in.byOp[o.op].add...)
	}
	if !o.span.IsRecording() {
		return
	}
	o.span.SetAttributes(attribute.String("tapestore.engine", in.engine), attribute.String("tapestore.outcome", class),
		attribute.Int64("tapestore.retries", retries))
	if id != "" {
		o.span.SetAttributes(attribute.String("tapestore.run", shown(string(id))))
	}
	if err != nil {
		switch class {
		case "unavailable", outcomeUnknown, "corrupt", "store_behind", "closed", "unsupported":
			o.span.SetStatus(codes.Error, shown(err.Error()))
		default: // a refusal is an answer
			o.span.SetAttributes(attribute.String("tapestore.refusal", shown(err.Error())))
		}
	}
	o.span.End()
}

// classOf returns the outcome of an operation. The caller's cancellation is no fault of the store.
func classOf(ctx context.Context, err error) string {
	if err == nil {
		return outcomeOK
	}
	kind := runstore.KindOf(err)
	if (kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome) && errors.Is(ctx.Err(), context.Canceled) {
		return outcomeCanceled
	}
	return classes[kind]
}

// maxShown is 256: the number of bytes of an id or a message that a span shows.
const maxShown = 256

// shown returns a text as valid UTF-8, which exporters require, of at most maxShown bytes.
func shown(text string) string {
	if len(text) > maxShown {
		text = text[:maxShown]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// do runs an operation that is neither a write nor a grant.
func do[R any](ctx context.Context, s *measured, op operation, id runstore.RunID, f func(context.Context) (R, error)) (R, error) {
	ctx, o, ok := s.begin(ctx, op)
	result, err := f(ctx)
	if ok {
		o.end(id, classOf(o.ctx, err), err)
	}
	return result, err
}

// wrote records the size of an applied write, the refusal of its fence or its unknown outcome, and names them in the
// span. It is to be called before end.
func (o *observation) wrote(f runstore.Fence, w *runstore.Writes, replayed bool, class string, err error) {
	in := o.s.in
	if err != nil {
		if runstore.OutcomeOf(err) == runstore.Unknown { // also if the class is outcomeCanceled
			in.unknown.Add(o.ctx, 1, in.byOp[o.op].add...)
		}
		if !f.IsZero() && (class == outcomeFenced || class == outcomeExpired) {
			in.fenced.Add(o.ctx, 1, in.byOp[o.op].add...)
			o.s.log.fenced(o.ctx, operationNames[o.op], f, err)
		}
	} else if !replayed && !w.IsZero() {
		record := in.byOp[o.op].record
		in.events.Record(o.ctx, int64(len(w.Events)), record...)
		in.records.Record(o.ctx, int64(len(w.Records)), record...)
		in.bytes.Record(o.ctx, sizeOf(w), record...)
	}
	if !o.span.IsRecording() {
		return
	}
	o.span.SetAttributes(attribute.Int("tapestore.events", len(w.Events)), attribute.Int("tapestore.records", len(w.Records)),
		attribute.Int64("tapestore.bytes", sizeOf(w)))
	if !f.IsZero() {
		o.span.SetAttributes(attribute.String("tapestore.owner", shown(string(f.Owner()))), attribute.Int64("tapestore.token", int64(f.Token())))
	}
}

// sizeOf returns the bytes of the data of a write.
func sizeOf(w *runstore.Writes) (n int64) {
	for i := range w.Events {
		n += int64(len(w.Events[i].Data))
	}
	for i := range w.Records {
		n += int64(len(w.Records[i].Value))
	}
	return n
}

// granted records a grant at the time at. A repeat that found its own grant is no grant.
func (o *observation) granted(l runstore.Lease, former runstore.GrantEnd, at time.Time, replayed bool) {
	if replayed || l.Token == 0 {
		return
	}
	in := o.s.in
	in.grants.Add(o.ctx, 1, in.byFormer[former]...)
	last, known := o.s.expiries.swap(l.Run, expiry{l.Token, l.Owner, l.ExpiresAt})
	known = known && last.token == l.Token-1
	var vacant time.Duration
	if known && former == runstore.EndExpired {
		vacant = max(0, at.Sub(last.at))
		in.vacancy.Record(o.ctx, vacant.Seconds(), in.byEngine...)
	}
	if former == runstore.EndExpired || former == runstore.EndPreempted {
		from := runstore.Owner("")
		if known {
			from = last.owner
		}
		o.s.log.takeover(o.ctx, l, former, from, vacant)
	}
	if o.span.IsRecording() {
		o.span.SetAttributes(attribute.String("tapestore.owner", shown(string(l.Owner))), attribute.Int64("tapestore.token", int64(l.Token)),
			attribute.String("tapestore.former", grantEnds[former]))
	}
}
