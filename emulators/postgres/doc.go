// Package postgres starts private PostgreSQL servers, or uses a running one. Package emulators says
// where a server comes from and how long it lives.
package postgres
