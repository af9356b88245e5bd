// The lock recipe of etcd's Go client under the workloads of benches/locks.rs, like peers/Curator.java. It reads one
// workload per line, and answers each with one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

// Number of tasks over many keys, the same as in the other systems.
const inFlight = 256

// Time in which a contender finds its predecessor.
const pause = 5 * time.Millisecond

type row map[string]any

func (r row) percentiles(name string, times []time.Duration) row {
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	at := func(part float64) float64 { return times[int(float64(len(times)-1)*part)].Seconds() * 1e6 }
	r[name+"_p50_us"], r[name+"_p99_us"] = at(0.5), at(0.99)
	return r
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

type lock struct{ *concurrency.Mutex }

func (l lock) acquire() { must(0, l.Lock(context.Background())) }
func (l lock) release() { must(0, l.Unlock(context.Background())) }

// inTasks runs count goroutines, each with its number, and waits for them.
func inTasks(count int, run func(number int)) {
	var tasks sync.WaitGroup
	tasks.Add(count)
	for number := 0; number < count; number++ {
		go func(number int) {
			defer tasks.Done()
			run(number)
		}(number)
	}
	tasks.Wait()
}

type etcd struct {
	hosts    []string
	sessions []*concurrency.Session
	paths    int
}

// connect opens a session with its own connection. Without a TTL in seconds, it has the default of 60.
func (e *etcd) connect(ttl int) *concurrency.Session {
	client := must(clientv3.New(clientv3.Config{Endpoints: e.hosts}))
	return must(concurrency.NewSession(client, concurrency.WithTTL(ttl)))
}

func (e *etcd) lock(number int, path string) lock {
	for len(e.sessions) <= number {
		e.sessions = append(e.sessions, e.connect(0))
	}
	return lock{concurrency.NewMutex(e.sessions[number], path)}
}

func (e *etcd) locks(clients int) []lock {
	path, locks := e.path(), make([]lock, clients)
	for number := range locks {
		locks[number] = e.lock(number, path)
	}
	return locks
}

func (e *etcd) path() string {
	e.paths++
	return fmt.Sprintf("/bench/etcd-go-%d-%d", os.Getpid(), e.paths)
}

func (e *etcd) w1(length time.Duration) row {
	lock := e.lock(0, e.path())
	var acquires, releases []time.Duration
	start := time.Now()
	for time.Since(start) < length {
		asked := time.Now()
		lock.acquire()
		granted := time.Now()
		lock.release()
		acquires = append(acquires, granted.Sub(asked))
		releases = append(releases, time.Since(granted))
	}
	perS := float64(len(acquires)) / time.Since(start).Seconds()
	return row{"cycles_per_s": perS}.percentiles("acquire", acquires).percentiles("release", releases)
}

func (e *etcd) w2(clients int, length time.Duration) row {
	locks, waits := e.locks(clients), make([][]time.Duration, clients)
	var stop, held atomic.Bool
	var last, handovers, violations atomic.Int64
	last.Store(-1)
	var perS float64
	start := time.Now()
	time.AfterFunc(length, func() {
		perS = float64(handovers.Load()) / time.Since(start).Seconds()
		stop.Store(true)
	})
	inTasks(clients, func(number int) {
		for !stop.Load() {
			asked := time.Now()
			locks[number].acquire()
			waits[number] = append(waits[number], time.Since(asked))
			if held.Swap(true) {
				violations.Add(1)
			}
			if last.Swap(int64(number)) != int64(number) {
				handovers.Add(1)
			}
			held.Store(false)
			locks[number].release()
		}
	})
	var all []time.Duration
	most, least := 0, len(waits[0])
	for _, its := range waits {
		all = append(all, its...)
		if len(its) > most {
			most = len(its)
		}
		if len(its) < least {
			least = len(its)
		}
	}
	return row{
		"handovers_per_s":      perS,
		"grants_max":           most,
		"grants_min":           least,
		"exclusion_violations": violations.Load(),
	}.percentiles("wait", all)
}

func (e *etcd) w3(waiting int, length time.Duration) row {
	// A session has one entry in a queue, so the holder itself queues again, behind the others.
	type grant struct {
		number int
		at     time.Time
	}
	clients := waiting + 1
	locks, granted := e.locks(clients), make(chan grant, clients)
	wait := func(number int) {
		locks[number].acquire()
		granted <- grant{number, time.Now()}
	}
	for number := range locks {
		go wait(number)
	}
	holder := (<-granted).number
	time.Sleep(100 * pause)
	var handovers []time.Duration
	order, violations := []int{holder}, 0
	for start := time.Now(); time.Since(start) < length; {
		violations += len(granted)
		released := time.Now()
		locks[holder].release()
		next := <-granted
		go wait(holder)
		holder = next.number
		handovers = append(handovers, next.at.Sub(released))
		order = append(order, holder)
		time.Sleep(pause)
	}
	for range locks[1:] {
		locks[holder].release()
		holder = (<-granted).number
	}
	locks[holder].release()
	row := row{"handovers": len(handovers), "exclusion_violations": violations}.percentiles("handover", handovers)
	if waiting > 1 && len(order) > clients {
		overtakes := 0
		for at, number := range order[clients:] {
			if order[at] != number {
				overtakes++
			}
		}
		row["order_overtakes"], row["order_checked"] = overtakes, len(order)-clients
	}
	return row
}

func (e *etcd) w4(keys, sessions int) row {
	path, locks, acquires := e.path(), make([]lock, keys), make([]time.Duration, keys)
	for key := range locks {
		locks[key] = e.lock(key%sessions, fmt.Sprintf("%s/%d", path, key))
	}
	tasks := inFlight
	if keys < tasks {
		tasks = keys
	}
	var next atomic.Int64
	start := time.Now()
	inTasks(tasks, func(int) {
		for {
			key := int(next.Add(1)) - 1
			if key >= keys {
				return
			}
			asked := time.Now()
			locks[key].acquire()
			acquires[key] = time.Since(asked)
			locks[key].release()
		}
	})
	perS := float64(keys) / time.Since(start).Seconds()
	return row{"cycles_per_s": perS}.percentiles("acquire", acquires)
}

func (e *etcd) hold(path string, timeoutMs int) row {
	lock{concurrency.NewMutex(e.connect((timeoutMs+999)/1000), path)}.acquire()
	return row{}
}

func (e *etcd) wait(path string) row {
	lock, asked := e.lock(0, path), time.Now()
	lock.acquire()
	waited := time.Since(asked)
	lock.release()
	return row{"wait_s": waited.Seconds()}
}

func main() {
	e := &etcd{hosts: strings.Split(os.Args[1], ",")}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		count := func(at int) int { return must(strconv.Atoi(words[at])) }
		seconds := func(at int) time.Duration {
			return time.Duration(must(strconv.ParseFloat(words[at], 64)) * float64(time.Second))
		}
		var row row
		switch words[0] {
		case "w1":
			row = e.w1(seconds(1))
		case "w2":
			row = e.w2(count(1), seconds(2))
		case "w3":
			row = e.w3(count(1), seconds(2))
		case "w4":
			row = e.w4(count(1), count(2))
		case "hold":
			row = e.hold(words[1], count(2))
		case "wait":
			row = e.wait(words[1])
		default:
			panic(words[0])
		}
		fmt.Println(string(must(json.Marshal(row))))
	}
}
