package alloydb

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

// statusNames are the names of HTTP statuses in Google's APIs.
var statusNames = map[int]string{
	http.StatusBadRequest:          "INVALID_ARGUMENT",
	http.StatusUnauthorized:        "UNAUTHENTICATED",
	http.StatusForbidden:           "PERMISSION_DENIED",
	http.StatusNotFound:            "NOT_FOUND",
	http.StatusTooManyRequests:     "RESOURCE_EXHAUSTED",
	http.StatusInternalServerError: "INTERNAL",
	http.StatusServiceUnavailable:  "UNAVAILABLE",
	http.StatusGatewayTimeout:      "DEADLINE_EXCEEDED",
}

// apiError is an error reply of the Admin API.
type apiError struct {
	code    int
	message string
}

func (e *apiError) Error() string { return e.message }

// serveAdmin starts the Admin API.
func (s *Server) serveAdmin() (err error) {
	if s.admin, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	api := http.NewServeMux()
	const root = "/v1alpha/" + cluster
	for _, instance := range instances {
		api.HandleFunc("GET "+root+"/instances/"+instance.name+"/connectionInfo", s.method(
			func(*http.Request) (proto.Message, *apiError) { return s.connectionInfo(instance), nil }))
	}
	api.HandleFunc("POST "+root+":generateClientCertificate", s.method(s.signCertificate))
	api.HandleFunc("/", s.method(func(r *http.Request) (proto.Message, *apiError) {
		return nil, &apiError{http.StatusNotFound, fmt.Sprintf("no such resource or method: %s %s", r.Method, r.URL.Path)}
	}))
	s.http = &http.Server{Handler: api, ReadHeaderTimeout: s.exchangeTimeout}
	s.serving.Go(func() { _ = s.http.Serve(s.admin) }) // until it is closed
	return nil
}

// method returns the HTTP handler of a method of the API.
func (s *Server) method(call func(*http.Request) (proto.Message, *apiError)) http.HandlerFunc {
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
			refusal = &apiError{http.StatusInternalServerError, err.Error()}
		}
		s.count(func(n *Stats) { n.AdminRefused++ })
		body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings and numbers only
			"code": refusal.code, "message": refusal.message, "status": statusNames[refusal.code],
		}})
		w.WriteHeader(refusal.code)
		_, _ = w.Write(body)
	}
}

// refusesCall returns the error of a call that is refused whatever it asks for, or nil.
func (s *Server) refusesCall(r *http.Request) *apiError {
	s.mu.Lock()
	status := s.adminStatus
	s.mu.Unlock()
	if status != 0 {
		return &apiError{status, fmt.Sprintf("a fault makes the emulator refuse with %d %s", status, http.StatusText(status))}
	}
	if r.Header.Get("Authorization") != "Bearer "+s.token {
		return &apiError{http.StatusUnauthorized, "the request does not carry the token that this emulator's TokenSource hands out"}
	}
	return nil
}

func (s *Server) connectionInfo(instance instanceAddresses) proto.Message {
	s.count(func(n *Stats) { n.ConnectionInfo++ })
	return &alloydbpb.ConnectionInfo{
		Name:            instanceURI(instance.name) + "/connectionInfo",
		IpAddress:       instance.private,
		PublicIpAddress: instance.public,
		PscDnsName:      instance.psc,
		InstanceUid:     instance.uid,
	}
}

func (s *Server) signCertificate(r *http.Request) (proto.Message, *apiError) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return nil, &apiError{http.StatusBadRequest, err.Error()}
	}
	var request alloydbpb.GenerateClientCertificateRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		return nil, &apiError{http.StatusBadRequest, err.Error()}
	}
	public, err := publicKeyFromPEM(request.GetPublicKey())
	if err != nil {
		return nil, &apiError{http.StatusBadRequest, err.Error()}
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
		return nil, &apiError{http.StatusInternalServerError, err.Error()}
	}
	s.count(func(n *Stats) { n.Certificates++ })
	ca := certificatePEM(s.ca.cert.Raw)
	return &alloydbpb.GenerateClientCertificateResponse{
		PemCertificateChain: []string{certificatePEM(der), ca},
		CaCert:              ca,
	}, nil
}
