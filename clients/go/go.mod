module github.com/keiro-net/keiro/clients/go

go 1.19
