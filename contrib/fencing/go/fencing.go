// Package fencing checks the fencing tokens of Lockkeeper's locks: the check of its FencingGate, with the same results.
// Copy this file; it needs Go 1.19 and nothing else.
//
// The resource remembers the newest token that it has seen, in the same atomic step as its data:
//
//	token, err := fencing.ParseToken(request.Header.Get("Fencing-Token")) // ErrInvalid: 400
//	err = gate.Admit(token, func() error { return order.save(state) })    // *StaleError: 409, and no second attempt
//
// Where the data is in a database, the check belongs into its transaction: see ../sql.
package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
)

// Token is the number of a grant, greater than those of all grants before it: from 1 to 2^63 - 1, as a decimal string in
// headers and in JSON.
type Token int64

// greatestInJSON: greater numbers in JSON may have been rounded by the program that wrote them.
const greatestInJSON = 1<<53 - 1

// ErrInvalid is the error of something that is no token.
var ErrInvalid = errors.New("a fencing token is a positive decimal number of 64 bits")

// StaleError is the error of a token older than one that the resource has seen: its holder has lost the lock, and must not
// write.
type StaleError struct {
	Token, Newest Token
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("token %d is stale: %d was seen", e.Token, e.Newest)
}

// ParseToken reads a token from its decimal string.
func ParseToken(text string) (Token, error) {
	// Base 10 takes neither blanks, underscores nor the digits of other scripts.
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < 1 {
		return 0, ErrInvalid
	}
	return Token(number), nil
}

func (t Token) String() string {
	return strconv.FormatInt(int64(t), 10)
}

// MarshalJSON writes a string: many programs round numbers above 2^53.
func (t Token) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.String())
}

// UnmarshalJSON reads a string, or a number below 2^53.
func (t *Token) UnmarshalJSON(data []byte) error {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return err
	}
	var err error
	switch value := value.(type) {
	case string:
		*t, err = ParseToken(value)
		return err
	case float64:
		if value == math.Trunc(value) && value >= 1 && value <= greatestInJSON {
			*t = Token(value)
			return nil
		}
	}
	return ErrInvalid
}

// Gate is the memory of a resource: the newest tokens that it has seen, 0 before the first. The zero value is ready to use,
// by any number of goroutines. Store it, as JSON, with the resource's data.
type Gate struct {
	mutex        sync.Mutex
	newest       Token
	newestShared Token
}

// Admit admits the newest token and those that are newer still, remembers it, and calls write while no other token is
// admitted. It returns ErrInvalid, a *StaleError, or the error of write, whose token counts as seen.
func (g *Gate) Admit(token Token, write func() error) error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if err := check(token, g.seen()); err != nil {
		return err
	}
	g.newest = token
	return write()
}

// AdmitShared admits a reader, unless a newer writer was seen; an older writer is refused from then on.
func (g *Gate) AdmitShared(token Token, read func() error) error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if err := check(token, g.newest); err != nil {
		return err
	}
	if token > g.newestShared {
		g.newestShared = token
	}
	return read()
}

// Newest returns the newest token seen, a writer's or a reader's; 0 before the first.
func (g *Gate) Newest() Token {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.seen()
}

// Reset forgets all tokens, for a move to another store, while no client holds a lock.
func (g *Gate) Reset() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.newest, g.newestShared = 0, 0
}

func (g *Gate) seen() Token {
	if g.newestShared > g.newest {
		return g.newestShared
	}
	return g.newest
}

func check(token, newest Token) error {
	if token < 1 {
		return ErrInvalid
	}
	if token < newest {
		return &StaleError{Token: token, Newest: newest}
	}
	return nil
}

// state is a gate as Rust's FencingGate is written.
type state struct {
	Newest       *Token `json:"newest"`
	NewestShared *Token `json:"newest_shared,omitempty"`
}

// MarshalJSON writes the gate as Rust's is written.
func (g *Gate) MarshalJSON() ([]byte, error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return json.Marshal(state{optional(g.newest), optional(g.newestShared)})
}

func optional(token Token) *Token {
	if token == 0 {
		return nil
	}
	return &token
}

// UnmarshalJSON reads what MarshalJSON or Rust's FencingGate has written.
func (g *Gate) UnmarshalJSON(data []byte) error {
	var read state
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.newest, g.newestShared = 0, 0
	if read.Newest != nil {
		g.newest = *read.Newest
	}
	if read.NewestShared != nil {
		g.newestShared = *read.NewestShared
	}
	return nil
}
