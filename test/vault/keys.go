package vault

import (
	"crypto/rsa"
	"math/big"
	"net/http"
	"strings"
	"time"
)

// pageSize is the most that a list shows at once.
const pageSize = 25

type attributes struct {
	Enabled         *bool  `json:"enabled,omitempty"`
	NotBefore       *int64 `json:"nbf,omitempty"`
	Expires         *int64 `json:"exp,omitempty"`
	Created         int64  `json:"created,omitempty"`
	Updated         int64  `json:"updated,omitempty"`
	RecoveryLevel   string `json:"recoveryLevel,omitempty"`
	RecoverableDays int    `json:"recoverableDays,omitempty"`
	Exportable      bool   `json:"exportable"`
}

type jsonKey struct {
	KID    string   `json:"kid,omitempty"`
	Kty    string   `json:"kty"`
	KeyOps []string `json:"key_ops,omitempty"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	// The rest is only read, when a key is imported.
	D string `json:"d,omitempty"`
	P string `json:"p,omitempty"`
	Q string `json:"q,omitempty"`
}

type bundle struct {
	Key        jsonKey    `json:"key"`
	Attributes attributes `json:"attributes"`
}

type deletedBundle struct {
	RecoveryID         string `json:"recoveryId"`
	DeletedDate        int64  `json:"deletedDate"`
	ScheduledPurgeDate int64  `json:"scheduledPurgeDate"`
	bundle
}

type listItem struct {
	KID        string     `json:"kid"`
	Attributes attributes `json:"attributes"`
}

type deletedItem struct {
	RecoveryID         string `json:"recoveryId"`
	DeletedDate        int64  `json:"deletedDate"`
	ScheduledPurgeDate int64  `json:"scheduledPurgeDate"`
	listItem
}

type page struct {
	Value    any     `json:"value"`
	NextLink *string `json:"nextLink"`
}

func (v *Vault) attributes(ver *version) attributes {
	days := v.srv.cfg.RecoverableDays
	level := "Recoverable+Purgeable"
	if days < 90 {
		level = "CustomizedRecoverable+Purgeable"
	}
	a := attributes{
		Enabled: &ver.enabled, Created: ver.created.Unix(), Updated: ver.updated.Unix(),
		RecoveryLevel: level, RecoverableDays: days,
	}
	for _, t := range []struct {
		at time.Time
		to **int64
	}{{ver.nbf, &a.NotBefore}, {ver.exp, &a.Expires}} {
		if n := unix(t.at); n != 0 {
			*t.to = &n
		}
	}
	return a
}

func (v *Vault) bundle(name string, ver *version) bundle {
	kty := "RSA"
	if v.hsm {
		kty = "RSA-HSM"
	}
	return bundle{
		Key: jsonKey{
			KID: v.KeyURL(name, ver.id), Kty: kty, KeyOps: ver.ops,
			N: encode(ver.priv.N.Bytes()), E: encode(big.NewInt(int64(ver.priv.E)).Bytes()),
		},
		Attributes: v.attributes(ver),
	}
}

func (v *Vault) deletedBundle(k *key) deletedBundle {
	current := k.versions[len(k.versions)-1]
	return deletedBundle{v.recoveryID(k), k.deletion.at.Unix(), k.deletion.purge.Unix(), v.bundle(k.name, current)}
}

func (v *Vault) recoveryID(k *key) string { return v.URL() + "/deletedkeys/" + k.name }

type keyRequest struct {
	Kty        string      `json:"kty"`
	KeySize    int         `json:"key_size"`
	KeyOps     []string    `json:"key_ops"`
	Attributes *attributes `json:"attributes"`
	Key        *jsonKey    `json:"key"`
}

// doCreate makes, rotates or imports a key.
func (v *Vault) doCreate(t target, r *http.Request) (int, any, *apiError) {
	var in keyRequest
	o := KeyOptions{}
	if t.op == OpRotate {
		current := v.find(t.key, "")
		if current == nil {
			return 0, nil, v.notFound(t)
		}
		o.Bits, o.Ops = current.priv.N.BitLen(), current.ops
	} else {
		if fault := readJSON(r, &in); fault != nil {
			return 0, nil, fault
		}
		o.Bits, o.Ops = in.KeySize, in.KeyOps
		if t.op == OpImport {
			if in.Key == nil {
				return 0, nil, badParameter(textBadProperty)
			}
			priv, fault := in.Key.private()
			if fault != nil {
				return 0, nil, fault
			}
			in.Kty, o.Key = in.Key.Kty, priv
			if in.Key.KeyOps != nil {
				o.Ops = in.Key.KeyOps
			}
		}
		if in.Kty != "RSA" && in.Kty != "RSA-HSM" {
			return 0, nil, badParameter("Only keys of type RSA and RSA-HSM are emulated.")
		}
	}
	ver, err := v.newVersion(o)
	if err != nil {
		return 0, nil, badParameter(err.Error())
	}
	in.apply(ver)
	v.mu.Lock()
	defer v.mu.Unlock()
	if fault := v.addVersion(t.key, ver); fault != nil {
		return 0, nil, fault
	}
	return 200, v.bundle(t.key, ver), nil
}

func (v *Vault) doUpdate(t target, r *http.Request) (int, any, *apiError) {
	var in keyRequest
	if fault := readJSON(r, &in); fault != nil {
		return 0, nil, fault
	}
	ver := v.find(t.key, t.version)
	if ver == nil {
		return 0, nil, v.notFound(t)
	}
	if err := v.change(t.key, ver.id, in.apply); err != nil {
		return 0, nil, v.notFound(t)
	}
	return 200, v.bundle(t.key, v.find(t.key, ver.id)), nil
}

// apply sets what the request names.
func (in keyRequest) apply(ver *version) {
	if in.KeyOps != nil {
		ver.ops = in.KeyOps
	}
	if a := in.Attributes; a != nil {
		if a.Enabled != nil {
			ver.enabled = *a.Enabled
		}
		if a.NotBefore != nil {
			ver.nbf = time.Unix(*a.NotBefore, 0)
		}
		if a.Expires != nil {
			ver.exp = time.Unix(*a.Expires, 0)
		}
	}
}

// private makes an RSA key of an imported JSON Web Key.
func (j jsonKey) private() (*rsa.PrivateKey, *apiError) {
	var nums []*big.Int
	for _, s := range []string{j.N, j.E, j.D, j.P, j.Q} {
		b, err := decode(s)
		if err != nil || len(b) == 0 {
			return nil, badParameter(textBadProperty)
		}
		nums = append(nums, new(big.Int).SetBytes(b))
	}
	priv := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: nums[0], E: int(nums[1].Int64())},
		D:         nums[2], Primes: nums[3:],
	}
	if err := priv.Validate(); err != nil {
		return nil, badParameter(textBadProperty)
	}
	priv.Precompute()
	return priv, nil
}

// doDeleted deletes and everything after it.
func (v *Vault) doDeleted(t target, r *http.Request) (int, any, *apiError) {
	if t.op == OpListDeleted {
		return v.listDeleted(r)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.op == OpDelete {
		k := v.live(t.key)
		if k == nil {
			return 0, nil, v.notFound(t)
		}
		v.softDelete(k)
		return 200, v.deletedBundle(k), nil
	}
	k := v.trash(t.key)
	if k == nil {
		if k := v.keys[strings.ToLower(t.key)]; k != nil && t.op != OpGetDeleted {
			if fault := v.conflict(k); fault != nil {
				return 0, nil, fault
			}
		}
		return 0, nil, errDeletedNotFound(strings.ToLower(t.key))
	}
	switch t.op {
	case OpGetDeleted:
		return 200, v.deletedBundle(k), nil
	case OpPurge:
		delete(v.keys, k.name)
		return http.StatusNoContent, nil, nil
	}
	k.deletion, k.back = nil, v.now().Add(v.srv.cfg.RecoverDelay)
	return 200, v.bundle(k.name, k.versions[len(k.versions)-1]), nil
}
