// Package certs keeps the certificates of a server and the authorities and revocation lists for its
// clients, and follows the files that they come from. A Store makes the TLS configuration of a
// server: TLS, or mutual TLS if there are authorities for clients.
//
// # Rotation
//
// [Store.Watch] looks at the files every ten seconds. A handshake uses the files as they were last
// read without a fault; open connections go on. Files that cannot be read, or do not fit together,
// are logged, and the former ones stay in use. So a certificate and its key may be replaced one after
// the other.
//
// # Clients
//
// A client's certificate must chain to a certificate of Files.ClientCA and be valid for client
// authentication. With Files.ClientCRL every certificate of the chain below the authority must be
// covered by a list of its issuer that is in force and does not name it. So must the authority, if
// another one of Files.ClientCA has issued it: otherwise the list of a root could not revoke an
// intermediate authority, which is named because its own list is needed. A list that is out of date
// admits no client of its issuer, and is read with a warning: an attacker that keeps new lists away
// must not keep a revoked certificate in use. [Store.CheckClient] repeats these checks for a
// connection that is open.
package certs
