// Package auth finds out which principal makes a call, and what the principal may do. Principals come
// from a file, which maps bearer tokens, client certificates and identities of an OpenID Connect
// issuer to names, roles and tenants, or from the claims of that issuer's tokens.
//
// # The file
//
//	principals:
//	  - name: agent            # for the log; several principals may not share one
//	    role: drive            # read, drive or operate
//	    tenants: [acme]        # without the key: every tenant
//	    token_sha256: 9f86…    # the SHA-256 of a token, in 64 hexadecimal digits
//	  - name: ops
//	    role: operate
//	    certificate: "CN=ops,O=Acme"
//	  - name: worker
//	    role: drive
//	    oidc_email: worker@project.iam.gserviceaccount.com
//
// The credentials of a principal are at least one of these. Each is a text or a list of texts:
//
//	token          a bearer token itself: 20 to 4,096 letters, digits and -._~+/=
//	token_sha256   the SHA-256 of one
//	certificate    the whole subject of a client certificate, as openssl's -nameopt RFC2253 prints
//	               it, or "*" for every certificate that no other principal names
//	oidc_subject   the claim sub of an OpenID Connect token
//	oidc_email     the claim email of one, if email_verified is true
//
// No two principals share a credential. Unknown keys, aliases and tags are faults. Tokens must be
// random (openssl rand -hex 32), because a hash keeps no secret that can be guessed.
//
// # Credentials of a call
//
// A call with an authorization header is judged by that header alone, also if the connection has a
// client certificate: a bad token is refused. Without the header the certificate counts. Errors and
// log lines name the reason and never the credential.
package auth
