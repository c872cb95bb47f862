package tapeserver_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/url"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver"
)

// patient returns the options with a HandshakeTimeout that does not pass, unless they set one.
func patient(opts *tapeserver.Options) *tapeserver.Options {
	var o tapeserver.Options
	if opts != nil {
		o = *opts
	}
	o.Limits.HandshakeTimeout = cmp.Or(o.Limits.HandshakeTimeout, never)
	return &o
}

// listen serves store on a TCP port and returns its address, and a function that drains the server and returns what
// Serve did. Handshakes may take any time unless opts bound it.
func listen(t *testing.T, store runstore.RunStore, opts *tapeserver.Options) (string, func() error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- tapeserver.New(store, patient(opts)).Serve(ctx, lis) }()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-served
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Serve = %v, want nil after a drain", err)
		}
	})
	return lis.Addr().String(), stop
}

// raw is a client that speaks HTTP/2 by itself, and so can break gRPC's manners.
type raw struct {
	net.Conn
	*http2.Framer
	headers bytes.Buffer
	encoder *hpack.Encoder
	next    uint32
	// settings are the server's first.
	settings map[http2.SettingID]uint32
	ended    map[uint32]error // by stream
}

// dial connects and reads the server's settings, so that the server has accepted the connection. Nothing is sent
// before begin.
func dial(t *testing.T, address string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return speak(t, c)
}

// speak reads the server's settings from a connection, which ends with the test.
func speak(t *testing.T, c net.Conn) *raw {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	r := &raw{Conn: c, Framer: http2.NewFramer(c, c), next: 1, settings: map[http2.SettingID]uint32{}, ended: map[uint32]error{}}
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.encoder = hpack.NewEncoder(&r.headers)
	f, err := r.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	_ = f.(*http2.SettingsFrame).ForeachSetting(func(s http2.Setting) error { r.settings[s.ID] = s.Val; return nil })
	return r
}

// begin is HTTP/2's greeting, with settings.
func (r *raw) begin(t *testing.T, settings ...http2.Setting) *raw {
	t.Helper()
	if _, err := r.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return r
}

// call begins a call and sends no message.
func (r *raw) call(t *testing.T, method string, extra ...hpack.HeaderField) (stream uint32) {
	t.Helper()
	r.headers.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/tape.v1.Tape/" + method},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, extra...) {
		_ = r.encoder.WriteField(f)
	}
	stream = r.next
	r.next += 2
	block := r.headers.Bytes()
	first := block[:min(len(block), 16<<10)]
	err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: len(first) == len(block)})
	for block = block[len(first):]; err == nil && len(block) > 0; {
		part := block[:min(len(block), 16<<10)]
		block = block[len(part):]
		err = r.WriteContinuation(stream, len(block) == 0, part)
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// send sends the first n bytes of a call's message; all of them, and the end, for n < 0.
func (r *raw) send(t *testing.T, stream uint32, m proto.Message, n int) {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(data))), data...)
	if n < 0 {
		err = r.WriteData(stream, true, framed)
	} else {
		err = r.WriteData(stream, false, framed[:n])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// await reads frames until ok is true for one, and notes the calls that ended meanwhile.
func (r *raw) await(t *testing.T, what string, ok func(http2.Frame) bool) {
	t.Helper()
	for {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatalf("before %s: %v", what, err)
		}
		r.note(f)
		if ok(f) {
			return
		}
	}
}

// note acknowledges settings and pings, and notes a call that ended.
func (r *raw) note(f http2.Frame) {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = r.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = r.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		if f.StreamEnded() {
			r.ended[f.StreamID] = statusIn(f)
		}
	case *http2.RSTStreamFrame:
		if r.ended[f.StreamID] == nil {
			r.ended[f.StreamID] = http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode}
		}
	}
}

// status reads frames until a call has ended and returns its status; an http2.StreamError if it was reset without one.
func (r *raw) status(t *testing.T, stream uint32) error {
	t.Helper()
	ended := func(http2.Frame) bool { return r.ended[stream] != nil }
	if !ended(nil) {
		r.await(t, "the end of a call", ended)
	}
	return r.ended[stream]
}

// message reads frames until a call has ended, and decodes the message that it was answered with.
func (r *raw) message(t *testing.T, stream uint32, m proto.Message) {
	t.Helper()
	var data []byte
	r.await(t, "the end of a call", func(f http2.Frame) bool {
		if d, ok := f.(*http2.DataFrame); ok && d.StreamID == stream {
			data = append(data, d.Data()...)
		}
		return r.ended[stream] != nil
	})
	if err := r.ended[stream]; err != errOK || len(data) < 5 {
		t.Fatalf("a call ended with %v and %d bytes", err, len(data))
	}
	if err := proto.Unmarshal(data[5:], m); err != nil {
		t.Fatal(err)
	}
}

var errOK = errors.New("OK")

// statusIn returns the status in a call's trailers, errOK for OK.
func statusIn(f *http2.MetaHeadersFrame) error {
	code, message := codes.Internal, ""
	for _, field := range f.Fields {
		switch field.Name {
		case "grpc-status":
			_ = code.UnmarshalJSON([]byte(field.Value))
		case "grpc-message":
			message, _ = url.PathUnescape(field.Value)
		}
	}
	if code == codes.OK {
		return errOK
	}
	return status.Error(code, message)
}
