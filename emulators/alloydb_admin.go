package emulators

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"cloud.google.com/go/alloydb/apiv1alpha/alloydbpb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// alloydbStatuses are the names of HTTP statuses in Google's APIs.
var alloydbStatuses = map[int]string{
	http.StatusBadRequest:          "INVALID_ARGUMENT",
	http.StatusUnauthorized:        "UNAUTHENTICATED",
	http.StatusForbidden:           "PERMISSION_DENIED",
	http.StatusNotFound:            "NOT_FOUND",
	http.StatusTooManyRequests:     "RESOURCE_EXHAUSTED",
	http.StatusInternalServerError: "INTERNAL",
	http.StatusServiceUnavailable:  "UNAVAILABLE",
	http.StatusGatewayTimeout:      "DEADLINE_EXCEEDED",
}

// alloydbStatus is an error reply of the Admin API.
type alloydbStatus struct {
	code    int
	message string
}

func (e *alloydbStatus) Error() string { return e.message }

// serveAdmin starts the Admin API.
func (s *AlloyDBServer) serveAdmin() (err error) {
	if s.admin, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	api := http.NewServeMux()
	const root = "/v1alpha/" + alloydbCluster
	for _, instance := range alloydbInstances {
		api.HandleFunc("GET "+root+"/instances/"+instance.name+"/connectionInfo", s.method(
			func(*http.Request) (proto.Message, *alloydbStatus) { return s.connectionInfo(instance), nil }))
	}
	api.HandleFunc("POST "+root+":generateClientCertificate", s.method(s.signCertificate))
	api.HandleFunc("/", s.method(func(r *http.Request) (proto.Message, *alloydbStatus) {
		return nil, &alloydbStatus{http.StatusNotFound, fmt.Sprintf("no such resource or method: %s %s", r.Method, r.URL.Path)}
	}))
	s.http = &http.Server{Handler: api, ReadHeaderTimeout: s.exchangeTimeout}
	s.serving.Go(func() { _ = s.http.Serve(s.admin) }) // until it is closed
	return nil
}

// method returns the HTTP handler of a method of the API.
func (s *AlloyDBServer) method(call func(*http.Request) (proto.Message, *alloydbStatus)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		refusal := s.refusesCall(r)
		var answer proto.Message
		if refusal == nil {
			answer, refusal = call(r)
		}
		w.Header().Set("Content-Type", "application/json")
		if refusal == nil {
			body, err := protojson.Marshal(answer)
			if err == nil {
				_, _ = w.Write(body) // the client may be gone
				return
			}
			refusal = &alloydbStatus{http.StatusInternalServerError, err.Error()}
		}
		s.count(func(n *AlloyDBStats) { n.AdminRefused++ })
		body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings and numbers only
			"code": refusal.code, "message": refusal.message, "status": alloydbStatuses[refusal.code],
		}})
		w.WriteHeader(refusal.code)
		_, _ = w.Write(body)
	}
}

// refusesCall returns the error of a call that is refused whatever it asks for, or nil.
func (s *AlloyDBServer) refusesCall(r *http.Request) *alloydbStatus {
	s.mu.Lock()
	status := s.adminStatus
	s.mu.Unlock()
	if status != 0 {
		return &alloydbStatus{status, fmt.Sprintf("a fault makes the emulator refuse with %d %s", status, http.StatusText(status))}
	}
	if r.Header.Get("Authorization") != "Bearer "+s.token {
		return &alloydbStatus{http.StatusUnauthorized, "the request does not carry the token that this emulator's TokenSource hands out"}
	}
	return nil
}

func (s *AlloyDBServer) connectionInfo(instance alloydbAddresses) proto.Message {
	s.count(func(n *AlloyDBStats) { n.ConnectionInfo++ })
	return &alloydbpb.ConnectionInfo{
		Name:            alloydbInstance(instance.name) + "/connectionInfo",
		IpAddress:       instance.private,
		PublicIpAddress: instance.public,
		PscDnsName:      instance.psc,
		InstanceUid:     instance.uid,
	}
}

func (s *AlloyDBServer) signCertificate(r *http.Request) (proto.Message, *alloydbStatus) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return nil, &alloydbStatus{http.StatusBadRequest, err.Error()}
	}
	var request alloydbpb.GenerateClientCertificateRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		return nil, &alloydbStatus{http.StatusBadRequest, err.Error()}
	}
	public, err := publicKeyFromPEM(request.GetPublicKey())
	if err != nil {
		return nil, &alloydbStatus{http.StatusBadRequest, err.Error()}
	}
	ttl := s.ttl
	if ttl == 0 {
		ttl = request.GetCertDuration().AsDuration()
	}
	if ttl <= 0 {
		ttl = time.Hour
	}
	der, err := s.ca.signClient(public, ttl)
	if err != nil {
		return nil, &alloydbStatus{http.StatusInternalServerError, err.Error()}
	}
	s.count(func(n *AlloyDBStats) { n.Certificates++ })
	ca := certificatePEM(s.ca.cert.Raw)
	return &alloydbpb.GenerateClientCertificateResponse{
		PemCertificateChain: []string{certificatePEM(der), ca},
		CaCert:              ca,
	}, nil
}
