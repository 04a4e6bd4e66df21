module azure-kms-plugin/test

go 1.26.0

replace azure-kms-plugin => ../

replace azure-kms-plugin/test/vault => ./vault
