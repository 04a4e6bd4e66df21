package vault

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// listVersions answers in the order of a hash of the ID: the service keeps no order.
func (v *Vault) listVersions(t target, r *http.Request) (int, any, *apiError) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	k := v.live(t.key)
	var versions []*version
	if k != nil {
		versions = slices.Clone(v.seen(k, &k.lists))
	}
	if len(versions) == 0 {
		if v.hsm && v.srv.cfg.HSMVersions404 {
			return 0, nil, v.notFound(t)
		}
		return 200, page{Value: []listItem{}}, nil
	}
	slices.SortFunc(versions, func(a, b *version) int {
		x, y := sha256.Sum256([]byte(a.id)), sha256.Sum256([]byte(b.id))
		return cmp.Or(slices.Compare(x[:], y[:]), cmp.Compare(a.id, b.id))
	})
	items := make([]listItem, 0, len(versions))
	for _, ver := range versions {
		items = append(items, listItem{v.KeyURL(k.name, ver.id), v.attributes(ver)})
	}
	return paged(v, r, "/keys/"+k.name+"/versions", items)
}

func (v *Vault) listKeys(r *http.Request) (int, any, *apiError) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	items := []listItem{}
	for _, k := range v.names(v.live) {
		items = append(items, listItem{v.KeyURL(k.name, ""), v.attributes(k.versions[len(k.versions)-1])})
	}
	return paged(v, r, "/keys", items)
}

func (v *Vault) listDeleted(r *http.Request) (int, any, *apiError) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	items := []deletedItem{}
	for _, k := range v.names(v.trash) {
		items = append(items, deletedItem{
			v.recoveryID(k), k.deletion.at.Unix(), k.deletion.purge.Unix(),
			listItem{v.KeyURL(k.name, ""), v.attributes(k.versions[len(k.versions)-1])},
		})
	}
	return paged(v, r, "/deletedkeys", items)
}

// paged cuts a list into pages with an absolute link to the next.
func paged[T any](v *Vault, r *http.Request, path string, items []T) (int, any, *apiError) {
	q := r.URL.Query()
	size := pageSize
	if s := q.Get("maxresults"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > pageSize {
			return 0, nil, badParameter("maxresults must be between 1 and 25")
		}
		size = n
	}
	from := 0
	if s := q.Get("$skiptoken"); s != "" {
		b, err := decode(s)
		n, err2 := strconv.Atoi(strings.TrimPrefix(string(b), "from:"))
		if err != nil || err2 != nil || n < 0 {
			return 0, nil, badParameter("The skip token is not valid.")
		}
		from = min(n, len(items))
	}
	to := min(from+size, len(items))
	p := page{Value: items[from:to]}
	if to < len(items) {
		link := v.URL() + path + "?" + url.Values{
			"api-version": {q.Get("api-version")},
			"$skiptoken":  {encode([]byte("from:" + strconv.Itoa(to)))},
			"maxresults":  {strconv.Itoa(size)},
		}.Encode()
		p.NextLink = &link
	}
	return 200, p, nil
}
