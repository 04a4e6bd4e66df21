package e2e_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	kmsapi "k8s.io/kms/apis/v2"
)

// A sight is what one surface of a plugin shows at one moment.
type sight struct {
	ok     bool   // all is well
	reason string // why it is not, as the surface names it
	phase  string // of a document
	alarms []string
	text   string // for the record: what was seen, in short
}

// A surface is a place where a plugin says how its key is.
type surface struct {
	name string
	look func(context.Context, *node) sight
}

// surfaces are all of them. Status is the only one that does not show a failure that
// is borne.
var surfaces = []surface{
	{"Status", seeStatus},
	{"/status", seeDocument},
	{"metrics", seeMetrics},
	{"status file", seeFile},
	{"command", seeCommand},
	{"log", seeLog},
}

// unseen is the sight of a surface that cannot be looked at.
func unseen(err error) sight { return sight{text: oneLine(err.Error())} }

// seeStatus calls Status as kube-apiserver does, on a connection of its own.
func seeStatus(ctx context.Context, n *node) sight {
	resp, err := n.status(ctx)
	switch {
	case err != nil:
		text := grpcstatus.Convert(err).Message()
		reason, _, _ := strings.Cut(text, ":")
		return sight{reason: reason, text: oneLine(text)}
	case resp.Healthz != "ok":
		return sight{text: "healthz " + resp.Healthz}
	}
	return sight{ok: true, text: "ok"}
}

func (n *node) status(ctx context.Context) (*kmsapi.StatusResponse, error) {
	conn, err := grpc.NewClient(n.plugin.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return kmsapi.NewKeyManagementServiceClient(conn).Status(ctx, &kmsapi.StatusRequest{})
}

// isUnserved reports whether a call found nobody behind the socket.
func isUnserved(err error) bool {
	return grpcstatus.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "connection error")
}

func seeDocument(ctx context.Context, n *node) sight {
	d, err := n.document(ctx)
	if err != nil {
		return unseen(err)
	}
	return d.sight()
}

// document is what /status answers.
func (n *node) document(ctx context.Context) (*document, error) {
	page, err := n.plugin.Page(ctx, n.plugin.StatusURL)
	if err != nil {
		return nil, err
	}
	return decodeDocument([]byte(page))
}

var conditionLine = regexp.MustCompile(`^azure_kms_condition\{(.*)\} 1$`)

// seeMetrics takes the one Degraded series that is 1 for the answer.
func seeMetrics(ctx context.Context, n *node) sight {
	page, err := n.plugin.Page(ctx, n.plugin.MetricsURL)
	if err != nil {
		return unseen(err)
	}
	for line := range strings.Lines(page) {
		m := conditionLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || label(m[1], "type") != "Degraded" {
			continue
		}
		s := sight{text: label(m[1], "status") + " " + label(m[1], "reason")}
		switch label(m[1], "status") {
		case "False":
			s.ok = true
		case "True":
			s.reason = label(m[1], "reason")
		}
		return s
	}
	return unseen(errors.New("no series of Degraded is 1"))
}

func label(labels, name string) string {
	m := regexp.MustCompile(`(?:^|,)` + name + `="([^"]*)"`).FindStringSubmatch(labels)
	if m == nil {
		return ""
	}
	return m[1]
}

func seeFile(_ context.Context, n *node) sight {
	data, err := os.ReadFile(n.statusFile)
	if err != nil {
		return unseen(err)
	}
	d, err := decodeDocument(data)
	if err != nil {
		return unseen(err)
	}
	return d.sight()
}

// oneLine cuts a text to what fits into a cell.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return text
}
