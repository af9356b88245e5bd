module example.com/lockkeeper/contrib/fencing/go

go 1.19
