package fencing

import (
	"encoding/json"
	"errors"
	"math/rand"
	"os"
	"sort"
	"sync"
	"testing"
)

type vectors struct {
	Texts []struct {
		Text  string
		Token *string
	}
	JSON []struct {
		JSON  string
		Token *string
	}
	Gates []struct {
		Name  string
		Steps []struct {
			Call   string
			Token  string
			Newest *string
		}
		State json.RawMessage
	}
}

func read(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("../vectors.json")
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Texts) < 20 || len(v.JSON) < 20 || len(v.Gates) < 20 {
		t.Fatal("there are vectors missing")
	}
	return v
}

func expect(t *testing.T, what string, token Token, err error, expected *string) {
	t.Helper()
	switch {
	case expected == nil && err == nil:
		t.Errorf("%q was read as %d", what, token)
	case expected != nil && (err != nil || token.String() != *expected):
		t.Errorf("%q was read as %d, %v", what, token, err)
	}
}

func TestTexts(t *testing.T) {
	for _, it := range read(t).Texts {
		token, err := ParseToken(it.Text)
		expect(t, it.Text, token, err, it.Token)
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
}

func TestJSON(t *testing.T) {
	for _, it := range read(t).JSON {
		var token Token
		err := json.Unmarshal([]byte(it.JSON), &token)
		// The package decodes null as "leave it": to 0, which no gate admits.
		if it.JSON == "null" && token == 0 {
			err = ErrInvalid
		}
		expect(t, it.JSON, token, err, it.Token)
	}
}

func TestGates(t *testing.T) {
	for _, it := range read(t).Gates {
		gate := new(Gate)
		for _, step := range it.Steps {
			token, _ := ParseToken(step.Token)
			written, err := false, error(nil)
			write := func() error { written = true; return nil }
			switch step.Call {
			case "admit":
				err = gate.Admit(token, write)
			case "admit_shared":
				err = gate.AdmitShared(token, write)
			case "reset":
				gate.Reset()
				continue
			default:
				t.Fatal(step.Call)
			}
			var stale *StaleError
			switch {
			case step.Newest == nil && (err != nil || !written):
				t.Errorf("%s: %v: %v", it.Name, step, err)
			case step.Newest != nil && (!errors.As(err, &stale) || stale.Newest.String() != *step.Newest || written):
				t.Errorf("%s: %v: %v", it.Name, step, err)
			}
			// As it is stored and read between two requests.
			stored, err := json.Marshal(gate)
			if err != nil {
				t.Fatal(err)
			}
			gate = new(Gate)
			if err := json.Unmarshal(stored, gate); err != nil {
				t.Fatal(err)
			}
		}
		state, _ := json.Marshal(gate)
		var is, should any
		if json.Unmarshal(state, &is) != nil || json.Unmarshal(it.State, &should) != nil {
			t.Fatal("no JSON")
		}
		if a, b := normal(is), normal(should); a != b {
			t.Errorf("%s: %s, expected %s", it.Name, a, b)
		}
	}
}

func normal(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

func TestWhatIsNoTokenChangesNothing(t *testing.T) {
	gate := new(Gate)
	for _, token := range []Token{0, -1, -1 << 63} {
		for _, call := range []func(Token, func() error) error{gate.Admit, gate.AdmitShared} {
			err := call(token, func() error { t.Error("written"); return nil })
			if !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
		}
	}
	if gate.Newest() != 0 {
		t.Error(gate.Newest())
	}
}

func TestAFailedWriteHasShownItsToken(t *testing.T) {
	gate, failed := new(Gate), errors.New("failed")
	if err := gate.Admit(9, func() error { return failed }); err != failed {
		t.Error(err)
	}
	var stale *StaleError
	if err := gate.Admit(8, func() error { return nil }); !errors.As(err, &stale) {
		t.Error(err)
	}
	if stale.Error() != "token 8 is stale: 9 was seen" {
		t.Error(stale)
	}
}

func TestTheCheckAndTheWriteAreOneStep(t *testing.T) {
	gate, written := new(Gate), []int{}
	var group sync.WaitGroup
	for seed := int64(0); seed < 8; seed++ {
		group.Add(1)
		go func(choose *rand.Rand) {
			defer group.Done()
			tokens := make([]int, 500)
			for i := range tokens {
				tokens[i] = 1 + choose.Intn(1000)
			}
			sort.Ints(tokens)
			for _, token := range tokens {
				_ = gate.Admit(Token(token), func() error { written = append(written, token); return nil })
			}
		}(rand.New(rand.NewSource(seed)))
	}
	group.Wait()
	if len(written) == 0 || !sort.IntsAreSorted(written) {
		t.Error(written)
	}
}

func TestRandomCallsFollowTheRule(t *testing.T) {
	choose := rand.New(rand.NewSource(8))
	for round := 0; round < 300; round++ {
		gate, exclusive, shared := new(Gate), Token(0), Token(0)
		for call := 0; call < 30; call++ {
			token := Token(1 + choose.Intn(14))
			if choose.Intn(2) == 0 {
				err := gate.Admit(token, func() error { return nil })
				if (err != nil) != (token < exclusive || token < shared) {
					t.Fatal(token, exclusive, shared, err)
				}
				if err == nil {
					exclusive = token
				}
			} else {
				err := gate.AdmitShared(token, func() error { return nil })
				if (err != nil) != (token < exclusive) {
					t.Fatal(token, exclusive, shared, err)
				}
				if err == nil && token > shared {
					shared = token
				}
			}
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, text := range []string{"17", "+7", " 7", "9223372036854775808", "1_000", "0x7"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if (err == nil) != (token > 0) {
			t.Error(text, token, err)
		}
		if again, err := ParseToken(token.String()); token > 0 && (err != nil || again != token) {
			t.Error(text, token, again)
		}
	})
}
