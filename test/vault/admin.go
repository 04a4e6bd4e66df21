package vault

import "net/http"

func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /identity/token", s.serveIdentity)
	return mux
}
