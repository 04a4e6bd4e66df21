package health_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"azure-kms-plugin/health"
	"azure-kms-plugin/health/status"
	"azure-kms-plugin/keyvault"
)

// A ringOf is a keyring whose state a test sets.
type ringOf struct {
	id     string
	behind bool
}

func (r *ringOf) KeyID(string) string { return r.id }
func (r *ringOf) Behind() bool        { return r.behind }

type reportRig struct {
	*rig
	uses      *health.Uses
	rotations *health.Rotations
	ring      *ringOf
	signIn    status.Credentials
	report    *health.Report
}

func startReport(t *testing.T, v *fakeVault) *reportRig {
	r := &reportRig{rig: start(t, v, health.Graces{}, ""), uses: health.NewUses(nil), rotations: &health.Rotations{}, ring: &ringOf{id: key.KeyID()}}
	r.report = health.NewReport(health.ReportConfig{
		Tracker: r.tracker, Prober: r.prober, Uses: r.uses, Keyring: r.ring, Rotations: r.rotations, Key: key,
		Credentials: func() status.Credentials { return r.signIn },
	})
	return r
}

// shown is the status and the reason of each condition, in their order.
func (r *reportRig) shown() (all []string) {
	for _, c := range r.report.Conditions() {
		all = append(all, string(c.Status)+" "+c.Reason)
	}
	return all
}

// What each failure means for each condition. The last one says nothing of failures.
func TestReport_Conditions(t *testing.T) {
	for _, tc := range []struct {
		reason keyvault.Reason
		ops    []keyvault.Op
		phase  health.Phase
		want   string // of KeyAvailable, CredentialsValid, EncryptionReady, DecryptionReady, Degraded
	}{
		{"", nil, health.Usable, "True True True True False"},
		{keyvault.Unreachable, nil, health.Degraded, "Unknown Unknown False False True"},
		{keyvault.Throttled, nil, health.Degraded, "Unknown Unknown False False True"},
		{keyvault.CredentialsUnavailable, nil, health.Degraded, "Unknown Unknown False False True"},
		{keyvault.NetworkDenied, nil, health.Degraded, "Unknown Unknown False False True"},
		{keyvault.VaultNotFound, nil, health.Degraded, "Unknown Unknown False False True"},
		{keyvault.CredentialsRefused, nil, health.Degraded, "Unknown False False False True"},
		{keyvault.AccessDenied, nil, health.Degraded, "Unknown True False False True"},
		{keyvault.AccessDenied, []keyvault.Op{keyvault.OpGet}, health.Usable, "True True True True False"},
		{keyvault.KeyDisabled, nil, health.Lost, "False True False False True"},
		{keyvault.KeyDeleted, nil, health.Lost, "False True False False True"},
	} {
		t.Run(strings.Trim(string(tc.reason)+" "+string(tc.phase), " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &fakeVault{}
				r := startReport(t, v)
				time.Sleep(10 * time.Second)
				if tc.reason != "" {
					v.set(func(v *fakeVault) { v.fail = always(tc.reason, tc.ops...) })
				}
				time.Sleep(2 * time.Minute)
				d := r.report.Document()
				require.Equal(t, tc.phase, d.Phase)
				var got []string
				for _, c := range d.Conditions[:5] {
					got = append(got, string(c.Status))
					if c.Status != status.True && c.Type != status.IsDegraded || c.Type == status.IsDegraded && c.Status == status.True {
						require.Contains(t, []string{string(tc.reason), "AsExpected"}, c.Reason, c.Type)
						require.NotEmpty(t, c.Message)
					}
					require.Contains(t, health.ConditionReasons(), c.Reason)
				}
				require.Equal(t, tc.want, strings.Join(got, " "))
				require.Equal(t, tc.phase != health.Lost, d.Answer.OK)
				require.Equal(t, r.tracker.Ready(t.Context()) == nil, d.Answer.OK, "what it says is what Status does")
				if !d.Answer.OK {
					require.Equal(t, r.tracker.Ready(t.Context()).Error(), d.Answer.Text)
				}
				require.Equal(t, tc.phase == health.Usable, len(d.Alarms) == 0)
				for _, a := range d.Alarms {
					require.Contains(t, a.Text, "restart none of them")
				}
			})
		})
	}
}

func TestReport_Starting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReport(t, &fakeVault{took: time.Second})
		require.Equal(t, slices.Repeat([]string{"Unknown Starting"}, 5), r.shown()[:5])
		d := r.report.Document()
		require.Equal(t, health.Starting, d.Phase)
		require.False(t, d.Answer.OK)
		require.Contains(t, d.Answer.Text, "the first probe has not been answered yet")
		require.Equal(t, status.ExitUnknown, d.Exit(time.Now()))
		time.Sleep(10 * time.Second)
	})
}

// An expired key: reads and running writers are safe, and the alarm says what is not.
func TestReport_ReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := startReport(t, v)
		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.expires = time.Now().Add(29 * 24 * time.Hour) })
		time.Sleep(2 * time.Minute)
		d := r.report.Document()
		require.Equal(t, "KeyExpiresSoon", d.Alarms[0].Reason)
		require.Equal(t, status.Warning, d.Alarms[0].Severity)
		require.Equal(t, status.False, d.Condition(status.IsDegraded).Status)
		require.Equal(t, status.ExitUsable, d.Exit(time.Now()))

		time.Sleep(29 * 24 * time.Hour)
		d = r.report.Document()
		require.Equal(t, health.ReadOnly, d.Phase)
		require.True(t, d.Answer.OK)
		require.Nil(t, d.Failure.LossTime, "never obeyed as a loss")
		require.Equal(t, status.False, d.Condition(status.EncryptionReady).Status)
		require.Equal(t, status.True, d.Condition(status.DecryptionReady).Status)
		require.Equal(t, status.True, d.Condition(status.KeyAvailable).Status)
		require.Equal(t, status.Critical, d.Alarms[0].Severity)
		require.Contains(t, d.Alarms[0].Text, "one that restarts cannot write")
		require.Equal(t, status.ExitDegraded, d.Exit(time.Now()))
	})
}

// A transition is one of the status alone, and is seen though nobody asks.
func TestReport_Transitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := startReport(t, v)
		go r.report.Run(t.Context())
		time.Sleep(10 * time.Second)
		before := r.report.Document().Condition(status.KeyAvailable).LastTransitionTime
		v.set(func(v *fakeVault) { v.fail = always(keyvault.Unreachable) })
		time.Sleep(10 * time.Minute)
		c := r.report.Document().Condition(status.KeyAvailable)
		require.Equal(t, status.Unknown, c.Status)
		require.WithinRange(t, c.LastTransitionTime, before.Add(10*time.Second), before.Add(50*time.Second))
		v.set(func(v *fakeVault) { v.fail = always(keyvault.Throttled) })
		time.Sleep(10 * time.Minute)
		now := r.report.Document().Condition(status.KeyAvailable)
		require.Equal(t, "Throttled", now.Reason)
		require.Equal(t, c.LastTransitionTime, now.LastTransitionTime, "it is as unknown as before")
	})
}

// An outage that ends with its grace is noticed when that is over, by the log too.
func TestReport_GraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{}
		r := startReport(t, v)
		go r.report.Run(t.Context())
		time.Sleep(10 * time.Second)
		v.set(func(v *fakeVault) { v.fail = always(keyvault.AccessDenied) })
		time.Sleep(time.Minute)
		d := r.report.Document()
		require.Equal(t, 10*time.Minute, d.Failure.LossTime.Sub(d.Failure.Since))
		time.Sleep(time.Until(*d.Failure.LossTime) + 6*time.Second)
		require.Equal(t, 1, r.logs.FilterMessageSnippet("key is lost").Len())
		require.Equal(t, health.Lost, r.report.Document().Phase)
		require.InDelta(t, 606, r.report.Document().Activity.OutageSeconds, 5)
	})
}

func TestReport_Rotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReport(t, &fakeVault{})
		time.Sleep(10 * time.Second)
		rotated := func() string { return r.shown()[5] }
		require.Equal(t, "Unknown NewestVersionUnknown", rotated())
		r.rotations.Event(keyvault.RotationEvent{Step: keyvault.VersionAdopted, Key: key})
		require.Nil(t, r.report.Document().Rotation, "a start is no rotation")
		r.rotations.Looked()
		require.Equal(t, "True NewestVersion", rotated())

		next := key.WithVersion("11111111111111111111111111111111")
		due := time.Now().Add(3 * time.Minute)
		r.uses.See(keyvault.Attributes{Key: next, Enabled: true})
		r.ring.behind = true
		r.rotations.Event(keyvault.RotationEvent{Step: keyvault.VersionLearned, Key: next, Due: due})
		require.Equal(t, "False Pending", rotated())
		require.Equal(t, status.RoleNext, r.report.Document().Keys[1].Role)
		r.rotations.Event(keyvault.RotationEvent{Step: keyvault.VersionWaiting, Key: next, Due: due, Err: &keyvault.Error{Reason: keyvault.KeyDisabled}})
		require.Equal(t, "False Waiting", rotated())
		time.Sleep(time.Minute)
		r.tracker.Follow(next, time.Now(), time.Time{})
		r.ring.id, r.ring.behind = next.KeyID(), false
		r.uses.Wrote(key)
		r.rotations.Event(keyvault.RotationEvent{Step: keyvault.VersionAdopted, Key: next, From: key, Due: due})
		d := r.report.Document()
		require.Equal(t, "True NewestVersion", rotated())
		require.Equal(t, key.Version, d.Rotation.From)
		require.Equal(t, next.Version, d.Rotation.To)
		require.Equal(t, status.RotationAdopted, d.Rotation.State)
		require.Equal(t, time.Minute, d.Rotation.CompletionTime.Sub(*d.Rotation.StartedTime))
		require.Equal(t, []status.Role{status.RoleWrite, status.RoleRead}, []status.Role{d.Keys[0].Role, d.Keys[1].Role})
		require.Equal(t, next.KeyID(), d.KeyID)

		r.rotations.Event(keyvault.RotationEvent{Step: keyvault.VersionAvailable, Key: next.WithVersion("22222222222222222222222222222222")})
		r.ring.behind = true
		require.Equal(t, "False Pinned", rotated())
	})
}

// However many connections there are, a document has room for its bound, API servers
// first, and says how many there are.
func TestReport_Clients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startReport(t, &fakeVault{})
		var open []status.Client
		r.report = health.NewReport(health.ReportConfig{
			Tracker: r.tracker, Prober: r.prober, Uses: r.uses, Keyring: r.ring, Key: key, Clients: func() []status.Client { return open },
		})
		require.Empty(t, r.report.Document().Clients)
		require.Zero(t, r.report.Document().ClientCount)
		for i := range 5600 {
			open = append(open, status.Client{PID: i + 1, KeyID: key.KeyID(), APIServer: i == 7 || i == 9, Since: time.Now().Add(time.Duration(i) * time.Second)})
		}
		d := r.report.Document()
		require.Equal(t, 5600, d.ClientCount)
		require.Len(t, d.Clients, status.MaxClients)
		pids := []int{d.Clients[0].PID, d.Clients[1].PID, d.Clients[2].PID, d.Clients[status.MaxClients-1].PID}
		require.Equal(t, []int{10, 8, 5600, 5600 - status.MaxClients + 3}, pids)
		require.Equal(t, 1, open[0].PID, "what was given is left as it was")
		data, err := json.Marshal(d)
		require.NoError(t, err)
		require.Less(t, len(data), 64<<10)
	})
}

// Every document is one that its reader accepts, whatever the state.
func TestReport_Decodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &fakeVault{fail: always(keyvault.CredentialsRefused)}
		r := startReport(t, v)
		for range 3 {
			synctest.Wait()
			data, err := json.Marshal(r.report.Document())
			require.NoError(t, err)
			d, err := status.Decode(strings.NewReader(string(data)))
			require.NoError(t, err)
			require.Equal(t, r.report.Document(), d)
			require.Equal(t, map[health.Phase]int{health.Starting: status.ExitLost, health.Usable: status.ExitUsable}[d.Phase], d.Exit(time.Now()), "it is refused, until it is not")
			time.Sleep(time.Minute)
			v.set(func(v *fakeVault) { v.fail = nil })
		}
		require.Equal(t, status.ExitUnknown, r.report.Document().Exit(time.Now().Add(2*time.Minute)), "too old to say anything")
	})
}

// What was in use survives a restart.
func TestUses_Restart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		m := health.OpenMemory(path, key, nil)
		uses := health.NewUses(m)
		tr := health.NewTracker(health.Config{Key: key, Memory: m})
		p := health.NewProber(health.ProberConfig{Vault: &fakeVault{}, Tracker: tr, Memory: m, Uses: uses})
		uses.Wrote(key.WithVersion("00000000000000000000000000000000"))
		go p.Run(t.Context())
		synctest.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		uses := health.NewUses(health.OpenMemory(path, key, nil))
		uses.See(keyvault.Attributes{Key: key.WithVersion("00000000000000000000000000000000")})
		r := startReport(t, &fakeVault{})
		r.report = health.NewReport(health.ReportConfig{Tracker: r.tracker, Prober: r.prober, Uses: uses, Keyring: r.ring, Key: key})
		synctest.Wait()
		d := r.report.Document()
		require.Len(t, d.Alarms, 1, "it is disabled, and was in use a moment before the restart")
		require.Equal(t, status.Critical, d.Alarms[0].Severity)
		require.Equal(t, status.False, d.Condition(status.DecryptionReady).Status)
		require.Equal(t, health.Usable, d.Phase)
		require.True(t, d.Answer.OK, "the state of an old version alone never fails Status")
		require.Equal(t, status.ExitDegraded, d.Exit(time.Now()))
	})
}
