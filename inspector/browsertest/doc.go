// Package browsertest tests the page of package inspector in a headless Chromium, and takes the
// screenshots of docs/inspector.md. It is a separate module, so that users of the inspector do not
// download what drives the browser.
package browsertest
